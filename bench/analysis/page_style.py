"""The style sheet of the report. It is a Python file, so that the page needs no second file."""

from __future__ import annotations

__all__ = ["STYLE_SHEET"]

STYLE_SHEET = """
:root {
  --sans: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "Liberation Sans", Arial,
    sans-serif;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, "Liberation Serif", Georgia, serif;
  --paper: #fcfcfa; --card: #ffffff; --ink: #1b2430; --muted: #5d6976; --rule: #dfe4ea;
  --lcr: #17788c; --legacy: #d8832a; --good: #2c7a51; --bad: #b3372f;
  --leader: #33539e; --follower: #8a63b8; --replicant: #3a9a6b; --http: #8a8f98;
  --httpfollower: #b0793a; --httpreplicant: #b3527e;
  --session-on: #1f7a8f; --session-both: #7d62b5; --session-off: #cc7a2e;
  --everywhere: #a35a3c; --required-one: #5b8fc7; --required-all: #1d5f86;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181d; --card: #1a2027; --ink: #e4e8ec; --muted: #9aa6b2; --rule: #313a44;
    --lcr: #4db3c6; --legacy: #e6a15a; --good: #6fc498; --bad: #ef8a80;
    --leader: #86a3e6; --follower: #bb99e3; --replicant: #66c796; --http: #a9afb8;
    --httpfollower: #d9a766; --httpreplicant: #e08bb0;
    --session-on: #58b9cd; --session-both: #b39be2; --session-off: #e39c5c;
    --everywhere: #dc9474; --required-one: #9cc4ee; --required-all: #5aa9d6;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; padding: 3.5rem 1.5rem 6rem; background: var(--paper); color: var(--ink);
  font: 16px/1.6 var(--sans); -webkit-text-size-adjust: 100%;
}
main, header, footer { max-width: 66rem; margin: 0 auto; }
h1, h2 { font-family: var(--serif); font-weight: 600; line-height: 1.2; }
h1 { font-size: 2.4rem; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.55rem; margin: 4rem 0 .6rem; padding-top: 1.4rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 2rem 0 .4rem; }
p, li { max-width: 46rem; }
p { margin: 0 0 .9rem; }
ul { padding-left: 1.2rem; margin: 0 0 1rem; }
li { margin: 0 0 .45rem; }
li::marker { color: var(--muted); }
code { font: .9em ui-monospace, "Liberation Mono", Menlo, monospace; }
.under { color: var(--muted); margin: 0 0 2rem; }
.lead { font: 1.25rem/1.5 var(--serif); margin: 0 0 .8rem; max-width: 50rem; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem;
  margin: 1.8rem 0 0; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 1rem 1.2rem 1.1rem; border-top: 3px solid var(--tone, var(--rule)); }
.tile b { display: block; font: 600 1.75rem/1.3 var(--serif); font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.tile span { display: block; font-size: .86rem; line-height: 1.45; color: var(--muted); }
figure { margin: 1.6rem 0 2rem; }
figure .picture { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 1.1rem 1.2rem; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 42rem; height: auto; }
figcaption { font-size: .88rem; line-height: 1.5; margin-top: .7rem; max-width: 50rem; }
figcaption small { display: block; font-size: .95em; color: var(--muted); margin-top: .15rem; }
.scroll { overflow-x: auto; margin: 1rem 0 1.5rem; border: 1px solid var(--rule);
  border-radius: 10px; background: var(--card); }
.tall { max-height: 34rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .84rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .62rem; text-align: left; vertical-align: top; white-space: nowrap; }
th { white-space: normal; position: sticky; top: 0; background: var(--card);
  color: var(--muted); font-weight: 600;
  box-shadow: inset 0 -1px var(--rule); vertical-align: bottom; }
th small { display: block; font-weight: 400; }
tbody tr + tr td { border-top: 1px solid color-mix(in srgb, var(--rule) 60%, transparent); }
.n { text-align: right; }
td.wide { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
tr.bad td { color: var(--bad); }
.dot::before { content: ""; display: inline-block; width: .6em; height: .6em; border-radius: 50%;
  background: var(--dot); margin-right: .5em; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--muted); font-size: .92rem; padding: .2rem 0; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .35rem 1.6rem;
  font-size: .92rem; max-width: 54rem; }
dl.pairs { grid-template-columns: max-content 1fr max-content 1fr; }
@media (max-width: 50rem) { dl.pairs { grid-template-columns: max-content 1fr; } }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 4rem; color: var(--muted); font-size: .86rem; }
@media print { body { padding: 0; } .tall { max-height: none; } h2 { break-after: avoid; } }
"""
