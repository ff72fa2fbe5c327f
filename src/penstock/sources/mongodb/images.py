"""Which collections store the images that a configuration cannot do without."""

from penstock.errors import ConfigError
from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.deployment import Client
from penstock.sources.mongodb.snapshot import collections

NAMED_MAX = 5
"""So many collections are named in a sentence."""


async def require_before_images(client: Client, source: str, config: MongoSourceConfig) -> None:
    """Refuse `tenant.field` where a delete would not say whose it was (P24).

    Raises ConfigError that names the captured collections without before images. One that is made
    later without them is found at its first delete, which then cannot be decoded.
    """
    if not config.needs_before_images:
        return
    captured = set(await collections(client, config))
    lacking = sorted(captured - await with_images(client, {database for database, _ in captured}))
    if not lacking:
        return
    named = ", ".join(f"{database}.{name}" for database, name in lacking[:NAMED_MAX])
    more = f" and {len(lacking) - NAMED_MAX} more" if len(lacking) > NAMED_MAX else ""
    raise ConfigError(
        f"{source}: tenant.field cannot tell whose a deleted document was, for these collections "
        f"store no before images: {named}{more}. Nothing was captured. Run in mongosh, for each: "
        f'db.runCommand({{collMod: "{lacking[0][1]}", changeStreamPreAndPostImages: '
        f"{{enabled: true}}}}), or take the tenant from the key (id_prefix, id_field)."
    )


async def with_images(client: Client, databases: set[str]) -> set[tuple[str, str]]:
    """The (database, collection)s that store before and after images."""
    found: set[tuple[str, str]] = set()
    for database in databases:
        listed = await client[database].list_collections(filter={"type": "collection"})
        async for entry in listed:
            images = entry.get("options", {}).get("changeStreamPreAndPostImages", {})
            if images.get("enabled"):
                found.add((database, entry["name"]))
    return found
