"""Certificates of nodes, and the encrypted streams between them.

    identity.py     whom a certificate names: `raftkv://<cluster>/<node>`
    authority.py    making certificates: the cluster's own authority (pure, on `cryptography`)
    directory.py    the files of the authority: what `raftkv certs` works on
    credentials.py  a node's three files, read and checked as a whole
    keeper.py       the credentials in force: replaced while the node runs
    report.py       what the status shows of them
    channel.py      TLS 1.3 over any stream: bytes in, bytes out

The engine imports `channel.py`, `identity.py` and `report.py` only, so that a node without
certificates never loads `cryptography`. What is protected and what is not is on
docs/internals/security.md.
"""
