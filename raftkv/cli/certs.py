"""`raftkv certs ...`: the cluster's authority and the certificates of its nodes.

Everything happens in one directory of files (raftkv/security/directory.py); no node is spoken to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .options import Format, examples, formatted, group
from .output import Styled

if TYPE_CHECKING:
    from raftkv.security.directory import CertificateDirectory, Described

    from .output import Row

__all__ = ["app"]

app = group("Certificates: the cluster's authority, and one for each node.")

Directory = Annotated[
    str, typer.Option("--dir", help="The directory with the authority and all certificates.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")]
NodeDays = Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")]
AuthorityDays = Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


def _directory(path: str) -> CertificateDirectory:
    # Imported late: the other commands start faster without `cryptography`.
    from raftkv.security.directory import CertificateDirectory

    return CertificateDirectory(path)


@app.command(epilog=examples("raftkv certs init --dir certs --cluster orders"))
@formatted("table", "json")
def init(
    form: Format,
    directory: Directory,
    cluster: Annotated[str, typer.Option("--cluster", help="The cluster's name, as in node.toml.")],
    days: AuthorityDays = 3650,
    force: Force = False,
) -> None:
    """Make a cluster's authority: ca.pem for every node, ca.key to be kept off the nodes."""
    _print(_directory(directory).init(cluster, days=days, force=force), form)


@app.command(
    epilog=examples(
        "raftkv certs issue a --host 10.0.0.1 --host a.example.org --dir certs",
        "raftkv certs issue r1 --replicant-only --dir certs",
    )
)
@formatted("table", "json")
def issue(
    form: Format,
    name: Name,
    directory: Directory,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="A host name or IP address of the node; may be repeated."),
    ] = None,
    days: NodeDays = 365,
    replicant_only: Annotated[
        bool, typer.Option("--replicant-only", help="Never accepted as a core.")
    ] = False,
    force: Force = False,
) -> None:
    """Make a certificate and a key for a node: NAME.pem and NAME.key."""
    made = _directory(directory).issue(
        name, hosts or [], days=days, replicant_only=replicant_only, force=force
    )
    _print(made, form)


@app.command(epilog=examples("raftkv certs renew a --dir certs"))
@formatted("table", "json")
def renew(form: Format, name: Name, directory: Directory, days: NodeDays = 365) -> None:
    """A new certificate and a new key for the same node; a running node takes them by itself."""
    _print(_directory(directory).renew(name, days=days), form)


@app.command("renew-ca", epilog=examples("raftkv certs renew-ca --dir certs"))
@formatted("table", "json")
def renew_ca(form: Format, directory: Directory, days: AuthorityDays = 3650) -> None:
    """A new authority. ca.pem holds the old ones too, until drop-ca: bring it to every node now."""
    _print(_directory(directory).renew_authority(days=days), form)


@app.command("drop-ca", epilog=examples("raftkv certs drop-ca --dir certs"))
@formatted("table", "json")
def drop_ca(
    form: Format,
    directory: Directory,
    force: Annotated[
        bool, typer.Option("--force", help="Even if certificates still depend on old ones.")
    ] = False,
) -> None:
    """Trust the newest authority only, once every certificate was renewed."""
    _print(_directory(directory).drop_authorities(force=force), form)


@app.command(epilog=examples("raftkv certs show --dir certs", "raftkv certs show a --dir certs"))
@formatted("table", "json")
def show(
    form: Format,
    directory: Directory,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A node's name, or ca; default all.")
    ] = None,
) -> None:
    """The certificates, their owners and how long they are valid."""
    _print(_directory(directory).show(name), form)


def _print(found: list[Described], form: Format) -> None:
    from .output import print_json, print_table

    if form.output == "json":
        print_json({"certificates": found})
        return
    headings = ("FILE", "OF", "HOSTS", "UNTIL", "DAYS", "FINGERPRINT", "ISSUER", "PROBLEM")
    print_table(headings, map(_row, found), numbers=("DAYS",))


def _row(each: Described) -> Row:
    owner = f"authority of {each.cluster}" if each.name is None else each.name
    return (
        each.file,
        owner + (" (replicant only)" if each.replicant_only else ""),
        ", ".join(each.hosts) or "-",
        each.not_after[:10],
        str(each.days_left),
        each.fingerprint,
        each.issuer or "-",
        Styled(each.problem, "red") if each.problem else "-",
    )
