"""`raftkv certs ...`: the cluster's authority and the certificates of its nodes.

Everything happens in one directory of files (raftkv/security/directory.py); no node is spoken to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from .output import console, print_json

if TYPE_CHECKING:
    from raftkv.security.directory import CertificateDirectory, Described

__all__ = ["app"]

app = typer.Typer(
    help="Certificates: the cluster's authority, and one for each node.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Directory = Annotated[
    str, typer.Option("--dir", help="The directory with the authority and all certificates.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The node's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON document instead.")]
NodeDays = Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")]
AuthorityDays = Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


def _directory(path: str) -> CertificateDirectory:
    # Imported late: the other commands start faster without `cryptography`.
    from raftkv.security.directory import CertificateDirectory

    return CertificateDirectory(path)


@app.command(epilog="Example: raftkv certs init --dir certs --cluster orders")
def init(
    directory: Directory,
    cluster: Annotated[str, typer.Option("--cluster", help="The cluster's name, as in node.toml.")],
    days: AuthorityDays = 3650,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make a cluster's authority: ca.pem for every node, ca.key to be kept off the nodes."""
    _print(_directory(directory).init(cluster, days=days, force=force), as_json)


@app.command(
    epilog="Examples: raftkv certs issue a --host 10.0.0.1 --host a.example.org --dir certs\n\n"
    "raftkv certs issue r1 --replicant-only --dir certs"
)
def issue(
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
    as_json: Json = False,
) -> None:
    """Make a certificate and a key for a node: NAME.pem and NAME.key."""
    made = _directory(directory).issue(
        name, hosts or [], days=days, replicant_only=replicant_only, force=force
    )
    _print(made, as_json)


@app.command(epilog="Example: raftkv certs renew a --dir certs")
def renew(name: Name, directory: Directory, days: NodeDays = 365, as_json: Json = False) -> None:
    """A new certificate and a new key for the same node; a running node takes them by itself."""
    _print(_directory(directory).renew(name, days=days), as_json)


@app.command("renew-ca", epilog="Example: raftkv certs renew-ca --dir certs")
def renew_ca(directory: Directory, days: AuthorityDays = 3650, as_json: Json = False) -> None:
    """A new authority. ca.pem holds the old ones too, until drop-ca: bring it to every node now."""
    _print(_directory(directory).renew_authority(days=days), as_json)


@app.command("drop-ca", epilog="Example: raftkv certs drop-ca --dir certs")
def drop_ca(
    directory: Directory,
    force: Annotated[
        bool, typer.Option("--force", help="Even if certificates still depend on old ones.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Trust the newest authority only, once every certificate was renewed."""
    _print(_directory(directory).drop_authorities(force=force), as_json)


@app.command(epilog="Examples: raftkv certs show --dir certs\n\nraftkv certs show a --dir certs")
def show(
    directory: Directory,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A node's name, or ca; default all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The certificates, their owners and how long they are valid."""
    _print(_directory(directory).show(name), as_json)


def _print(found: list[Described], as_json: bool) -> None:
    if as_json:
        print_json({"certificates": found})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("FILE", "OF", "HOSTS", "UNTIL", "DAYS", "FINGERPRINT", "ISSUER", "PROBLEM"):
        right = heading == "DAYS"
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for each in found:
        owner = f"authority of {each.cluster}" if each.name is None else each.name
        table.add_row(
            each.file,
            owner + (" (replicant only)" if each.replicant_only else ""),
            ", ".join(each.hosts) or "-",
            each.not_after[:10],
            str(each.days_left),
            each.fingerprint,
            each.issuer or "-",
            Text(each.problem, style="red") if each.problem else "-",
        )
    console().print(table)
