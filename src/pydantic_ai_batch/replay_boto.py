"""The client of AWS's SDK that a shadow of a Bedrock model makes its requests with, which sends nothing.

The SDK tells what listens to its events of each request before it goes out, and takes an answer from there for the
provider's.
"""

# The SDK comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings, merge_model_settings

Answer = Callable[[str, bytes], tuple[int, bytes]]
"""What a request is answered with, its status and its body, by the path and the body that it was made with."""


@cache
def _loader(data_path: str | None) -> Any:
    from botocore import loaders

    return cast('Any', loaders).create_loader(data_path)


def new_session() -> Any:
    """A session of the SDK, for clients that a session's own settings and credentials are not wanted for.

    All of them read the SDK's descriptions of the services once, which takes a tenth of a second and more.
    """
    from botocore.session import Session

    session = cast('Any', Session())
    session.register_component('data_loader', _loader(session.get_config_variable('data_path')))
    return session


def silent_client(client: Any, answer: Answer) -> Any:
    """A client like the user's `bedrock-runtime` one, whose requests are answered here.

    Args:
        client: The user's.
        answer: Called with each request, in the thread that makes it.
    """
    import botocore
    from botocore.awsrequest import AWSResponse
    from botocore.config import Config

    config = Config(
        # Nobody reads a signature, so that no credentials are needed either.
        signature_version=botocore.UNSIGNED,
        parameter_validation=client.meta.config.parameter_validation,
        retries={'total_max_attempts': 1},
    )
    silent = new_session().create_client(
        'bedrock-runtime', region_name=client.meta.region_name, endpoint_url=client.meta.endpoint_url, config=config
    )

    def respond(request: Any, **_: Any) -> AWSResponse:
        status_code, body = answer(urlsplit(str(request.url)).path, bytes(request.body or b''))
        return AWSResponse(request.url, status_code, {'content-type': 'application/json'}, cast('Any', _Body(body)))

    silent.meta.events.register('before-send.bedrock-runtime', respond)
    return silent


class _Body:
    """The body of a response, as the SDK reads it from its HTTP client."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._content


def unstreamed(model: Model, settings: ModelSettings | None) -> ModelSettings | None:
    """Settings with which a Bedrock model asks for its answer whole, and reads it so, for the same request.

    Without `max_tokens`, it asks a Claude model for as many as that has, and has the answer streamed behind the scenes.
    """
    most = cast('dict[str, Any]', model.profile).get('anthropic_max_output_tokens')
    if not most or (merge_model_settings(model.settings, settings) or {}).get('max_tokens'):
        return settings
    return cast('ModelSettings', {**(settings or {}), 'max_tokens': most})
