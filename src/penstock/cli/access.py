"""`penstock access create | list | revoke`: who may connect, and what they may see."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.cli.config import Settings
    from penstock.serve.access.grants import WrittenGrant

app = typer.Typer(
    name="access",
    help="Who may connect to the service, and what they may see of it.",
    no_args_is_help=True,
)

NameArgument = Annotated[str, typer.Argument(help="What logs and limits call it.", metavar="NAME")]


@app.command()
def create(
    name: NameArgument,
    sources: Annotated[
        list[str] | None, typer.Option("--source", help="Only this source; repeatable.")
    ] = None,
    tenants: Annotated[
        list[str] | None, typer.Option("--tenant", help="Only this tenant; repeatable.")
    ] = None,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collection", help="Only this: collection or source/collection; repeatable."
        ),
    ] = None,
    hide: Annotated[
        list[str] | None,
        typer.Option("--hide", help="Leave this field out, as address.street; repeatable."),
    ] = None,
    verbs: Annotated[
        list[str] | None,
        typer.Option("--verb", help="read, before-images, schema or admin; repeatable. [read]"),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", help="After this long: 12h, 90d. Without: never.")
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(
            "--certificate",
            help="No token: whoever has a client certificate of this name (mutual TLS).",
            metavar="SUBJECT",
        ),
    ] = None,
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Let somebody in: prints a token, once. It is not kept, and nobody can show it again.

    What is not limited is allowed: without --source, --tenant and --collection, all of them. A
    running service takes it at once. What is limited or hidden by a name that nothing has is told.
    """
    import time

    from penstock.cli.access_names import unmatched
    from penstock.serve.access.book import added, changing
    from penstock.serve.access.tokens import Record, new_token

    now = time.time()
    settings, path = _settings(config)
    token, number, digest = new_token()
    record = Record(
        id=number,
        name=_name(name),
        kind="token" if certificate is None else "certificate",
        digest=digest if certificate is None else "",
        subject=certificate or "",
        grants=(_grant(verbs, sources, tenants, collections, hide),),
        created_at=now,
        expires_at=None if expires is None else now + _seconds(expires),
    )
    with changing(path) as change:
        change(lambda kept: added(kept, record))
    told = unmatched(settings, record.grants[0])
    for sentence in told:
        output.say(f"warning: {sentence}", err=True)
    if as_json:
        fact = {"id": number, "name": name, "expiresAt": record.expires_at, "unmatched": told}
        output.emit(fact if certificate is not None else {**fact, "token": token})
    elif certificate is not None:
        output.stdout().print(
            f"{name} may connect with a certificate of {certificate!r}.", markup=False
        )
    else:
        typer.echo(token)
        output.stderr().print(
            f"This is the token of {name}. It is shown only now: put it where its owner finds it, "
            f"as in a file for --token-file, and nowhere else.",
            markup=False,
        )


@app.command("list")
def list_(
    config: output.ConfigOption = output.DEFAULT_CONFIG, as_json: output.JsonOption = False
) -> None:
    """Show who may connect, without secrets; also who was revoked, or is over."""
    import time

    from rich.table import Table

    from penstock.serve.access.book import load

    now = time.time()
    records = load(_path(config)).records
    if as_json:
        for one in records:
            output.emit(
                {
                    "id": one.id,
                    "name": one.name,
                    "kind": one.kind,
                    "subject": one.subject,
                    "valid": one.is_valid(now),
                    "createdAt": one.created_at,
                    "expiresAt": one.expires_at,
                    "revokedAt": one.revoked_at,
                    "grants": one.grants,
                }
            )
        return
    table = Table()
    for column in ("name", "id", "is", "may", "on", "without", "until"):
        # What is typed again stands on one line.
        table.add_column(column, no_wrap=column in {"name", "id"})
    for one in records:
        state = "valid" if one.is_valid(now) else "revoked" if one.revoked_at else "over"
        until = "-" if one.expires_at is None else output.instant(int(one.expires_at * 1000))
        for grant in one.grants:
            limits = [*grant.sources, *grant.tenants, *grant.collections]
            table.add_row(
                output.cell(one.name),
                output.cell(one.id),
                state,
                ", ".join(grant.verbs),
                output.cell(", ".join(limits) or "everything"),
                output.cell(", ".join(grant.hidden)),
                until,
            )
    output.stdout().print(table)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="Its name, or its id.", metavar="NAME")],
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
) -> None:
    """Let somebody in no more. Streams that are open end within seconds."""
    import time

    from penstock.serve.access.book import changing, revoked

    with changing(_path(config)) as change:
        change(lambda kept: revoked(kept, name, now=time.time()))
    if as_json:
        output.emit({"revoked": name})
    else:
        output.stdout().print(f"{name} is revoked; its streams end.", markup=False)


def _path(config: "Path") -> "Path":
    return _settings(config)[1]


def _settings(config: "Path") -> "tuple[Settings, Path]":
    """The configuration, and where tokens are kept."""
    from penstock.cli.config import load
    from penstock.errors import ConfigError

    settings = load(config)
    tokens = settings.access.tokens
    if tokens is None:
        raise ConfigError(
            f"{config}: there is no access.tokens, where tokens are kept. Nothing was changed. "
            f'Write tokens = "access.json" under [access], and restart the service.'
        )
    return settings, tokens


def _name(name: str) -> str:
    from penstock.errors import ConfigError

    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise ConfigError("a name has 1 to 100 letters that can be printed. Nothing was changed.")
    return name


def _seconds(duration: str) -> float:
    from penstock.config import parse_duration
    from penstock.errors import ConfigError

    try:
        return float(parse_duration(duration))
    except ValueError as error:
        raise ConfigError(f"--expires: {error}. Nothing was changed.") from None


def _grant(
    verbs: list[str] | None,
    sources: list[str] | None,
    tenants: list[str] | None,
    collections: list[str] | None,
    hidden: list[str] | None,
) -> "WrittenGrant":
    from penstock.errors import ConfigError
    from penstock.serve.access.grants import WrittenGrant
    from penstock.subscribe.scope import Verb

    try:
        grant = WrittenGrant(
            verbs=tuple(Verb(verb) for verb in verbs or ["read"]),
            sources=tuple(sources or ()),
            tenants=tuple(tenants or ()),
            collections=tuple(collections or ()),
            hidden=tuple(hidden or ()),
        )
        grant.grant()
    except ValueError as error:
        raise ConfigError(f"{error}. Nothing was changed.") from None
    return grant
