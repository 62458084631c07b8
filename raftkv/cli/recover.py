"""`raftkv recover`: a new cluster from one surviving data directory, when a majority is lost.

It works on files only: no node runs, none is asked. raft/forced_recovery.py has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raftkv.errors import ConfigError

from .options import Format, examples, formatted
from .saying import confirm, say

if TYPE_CHECKING:
    from raftkv.raft.forced_recovery import Survey

__all__ = ["register"]


@formatted("simple", "json")
def recover(
    form: Format,
    directory: Annotated[
        str, typer.Option("--dir", help="The data directory of the core that survived.")
    ],
    force_new: Annotated[
        bool,
        typer.Option(
            "--force-new-cluster", help="Make this core the only one of the cluster. Loses data."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the directory holds and what would be lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
) -> None:
    """Make a cluster of one core from its data directory. For when a majority is lost for good.

    Acknowledged writes may be lost. Stop every other core first, and keep copies of all
    directories. Of several survivors take the one with the highest last term, then last index.
    """
    # Imported late: the other commands start faster without the engine.
    import secrets

    from raftkv.raft.forced_recovery import force_new_cluster, survey
    from raftkv.raft.identity import DataDirectory
    from raftkv.runtime import OsFiles

    if not force_new and not dry_run:
        raise ConfigError(
            "say --dry-run to see what the directory holds, or --force-new-cluster to make it the "
            "only core of its cluster"
        )
    files = OsFiles()
    held = DataDirectory.existing(files, directory)
    try:
        before = survey(files, held)
        if dry_run:
            _print(before, form, text=f"{_found(before)}\n\n{_warning(before)}")
            return
        if not yes:
            _confirm(before)
        after = force_new_cluster(files, held, secrets.token_bytes)
    finally:
        held.close()
    _print(after, form, text=_next_steps(after))


def _print(found: Survey, form: Format, *, text: str) -> None:
    if form.output == "json":
        import msgspec

        from .output import print_json

        uncertain = {"uncertain_entries": found.uncertain_entries}
        print_json({**msgspec.to_builtins(found), **uncertain})
    else:
        say(text)


def _confirm(before: Survey) -> None:
    """The name of the node is typed. Raises ConfigError."""
    confirm(f"{_found(before)}\n\n{_warning(before)}\n", before.name)


def _found(found: Survey) -> str:
    epoch = "never recovered by force" if found.epoch == "0" else f"epoch {found.epoch}"
    lines = [
        f"{found.directory} is of the core {found.name!r} ({found.raft_id})",
        f"cluster          {found.cluster} ({found.cluster_id}), {epoch}",
        f"voters           {', '.join(found.voters)}",
        f"copies           {', '.join(found.learners) or 'none'}",
        f"term             {found.term}",
        f"last entry       {found.last_index}, of term {found.last_term}",
        f"snapshot         up to entry {found.snapshot_index}",
    ]
    if found.interrupted:
        lines.append("a recovery of it was begun and not finished: this goes on with it")
    if not found.voted:
        lines.append("it was no voter, only a copy: a voter's directory may hold more")
    return "\n".join(lines)


def _warning(found: Survey) -> str:
    others = ", ".join(name for name in found.voters if name != found.name) or "nobody"
    return (
        f"What may be lost: every write behind entry {found.last_index}. The other voters "
        f"({others}) may have\nacknowledged any number of them without this core.\n"
        f"What may appear: up to {found.uncertain_entries} entries behind the snapshot, of which "
        f"this core cannot know whether\nthey were committed. They all will be; some callers may "
        f"have been told that they failed.\n"
        f"What is given up: the directories of all other cores. Those nodes are refused from now "
        f"on and stop\nthemselves; replicants copy the state anew."
    )


def _next_steps(after: Survey) -> str:
    return (
        f"{after.name} is the only core of {after.cluster} now, as {after.raft_id} in epoch "
        f"{after.epoch}.\nStart it, then start the others with empty data directories and add them "
        f"one by one:\n\n    raftkv member add NAME --endpoint http://HOST:PORT"
    )


def register(app: typer.Typer) -> None:
    """Add the command to the top level."""
    text = examples(
        "raftkv recover --dir /var/lib/raftkv/a --dry-run",
        "raftkv recover --dir /var/lib/raftkv/a --force-new-cluster",
    )
    app.command("recover", epilog=text)(recover)
