"""Which handler serves a path."""

from __future__ import annotations

import pytest

from swarm.http.messages import Request, Response, text_response
from swarm.http.router import Match, NoMatch, Router


async def handler(request: Request) -> Response:
    return text_response(200, "")


def router() -> Router:
    table = Router()
    for method, pattern in (
        ("GET", "/v1/versions"),
        ("POST", "/v1/versions"),
        ("GET", "/v1/versions/{reference}"),
        ("GET", "/v1/versions/{reference}/manifest"),
    ):
        table.add(method, pattern, handler)
    return table


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/v1/versions", {}),
        ("/v1/versions/abc", {"reference": "abc"}),
        ("/v1/versions/org%2Fm%40v1/manifest", {"reference": "org/m@v1"}),
    ],
)
def test_patterns_capture_decoded_segments(path: str, values: dict[str, str]) -> None:
    found = router().find("GET", path)
    assert isinstance(found, Match)
    assert found.path_values == values


@pytest.mark.parametrize("path", ["/", "/v1/versions/", "/v1/versions/a/b", "/v1//x", ""])
def test_other_paths_lead_nowhere(path: str) -> None:
    found = router().find("GET", path)
    assert found == NoMatch(())


def test_another_method_is_told_which_there_are() -> None:
    assert router().find("PUT", "/v1/versions") == NoMatch(("GET", "POST"))


def test_head_is_served_by_get() -> None:
    assert isinstance(router().find("HEAD", "/v1/versions"), Match)
