"""What an endpoint makes of a request: that of a catalog sees nothing else. Pure."""

from collections.abc import Callable
from typing import Any, cast

from msgspec import structs

from penstock.errors import RequestError
from penstock.subscribe.captures import CaptureRequest, Criterion, Site, parse_request


def parse_at(given: object, catalog: str | None, *, new_id: Callable[[], str]) -> CaptureRequest:
    """`parse_request`, at the endpoint of a catalog, or of the whole system (None).

    A request at the system's that has no criteria is about the area `system`. Raises RequestError
    as `parse_request`, and for a site that lies in other catalogs.
    """
    if catalog is not None:
        return within(parse_request(given, new_id=new_id), catalog)
    if not isinstance(given, dict):
        return parse_request(given, new_id=new_id)
    asked = cast("dict[str, Any]", given)
    if not asked.get("criteria") and asked.get("scope") is None:
        asked = {**asked, "criteria": [{"area": "system"}]}
    return parse_request(asked, new_id=new_id)


def within(request: CaptureRequest, catalog: str) -> CaptureRequest:
    """`request`, for this catalog only. Raises RequestError where a site lies elsewhere."""
    criteria = tuple(
        Criterion(area=one.area, site=_site_within(one.site, catalog)) for one in request.criteria
    )
    return structs.replace(request, criteria=criteria)


def _site_within(site: Site, catalog: str) -> Site:
    if not site.catalogs:
        return structs.replace(site, catalogs=frozenset({catalog}))
    inside = {name for name in site.catalogs if name == catalog or name.startswith(f"{catalog}.")}
    if any(catalog.startswith(f"{name}.") for name in site.catalogs):
        inside.add(catalog)
    if not inside:
        raise RequestError(
            f"site.catalog names {', '.join(sorted(site.catalogs))}, and this endpoint is of "
            f"{catalog}. Nothing was sent. Ask at that catalog's endpoint, or at the system's."
        )
    return structs.replace(site, catalogs=frozenset(inside))
