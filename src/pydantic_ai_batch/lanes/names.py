"""The names of lanes and models as people type them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model

from pydantic_ai_batch.exceptions import sdk_missing

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        'amazon': 'bedrock',
        'aws': 'bedrock',
        'azure-openai': 'azure',
        'claude': 'anthropic',
        'deep-infra': 'deepinfra',
        'fireworks-ai': 'fireworks',
        'gemini': 'google',
        'google-cloud': 'vertex',
        'google-vertex': 'vertex',
        'gpt': 'openai',
        'grok': 'xai',
        'mistralai': 'mistral',
        'together-ai': 'together',
        'togetherai': 'together',
        'vertex-ai': 'vertex',
        'vertexai': 'vertex',
        'x-ai': 'xai',
    }
)
"""Other names that lanes go by, which are accepted where a name is typed, and their canonical ones."""


def _azure_responses(name: str) -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel

    return OpenAIResponsesModel(name, provider='azure')


def _deepinfra(name: str) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel

    from pydantic_ai_batch.providers import DeepInfraProvider

    return OpenAIChatModel(name, provider=DeepInfraProvider())


def _xai(name: str) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel

    from pydantic_ai_batch.providers import XAILanguageProvider

    return OpenAIChatModel(name, provider=XAILanguageProvider())


def _xai_responses(name: str) -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel

    from pydantic_ai_batch.providers import XAILanguageProvider

    return OpenAIResponsesModel(name, provider=XAILanguageProvider())


def _vertex(name: str) -> Model:
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return infer_model(f'google-cloud:{name}')
    except DefaultCredentialsError as error:
        raise UserError(
            'There are no credentials for Google Cloud: set the environment variable `GOOGLE_APPLICATION_CREDENTIALS` '
            'to the file of a service account, or run `gcloud auth application-default login`.'
        ) from error
    except ValueError as error:
        # Of credentials that are of no project by themselves.
        raise UserError(
            f'There is no project for Google Cloud: {error} Set the environment variable `GOOGLE_CLOUD_PROJECT`.'
        ) from error


def _bedrock(name: str) -> Model:
    try:
        return infer_model(f'bedrock:{name}')
    except UserError as error:
        if type(error.__cause__).__name__ != 'NoRegionError':
            raise
        raise UserError(
            'There is no region for Amazon Bedrock: set the environment variable `AWS_DEFAULT_REGION`, as to '
            '`us-east-1`, or `AWS_PROFILE` to a profile that has one.'
        ) from error


_OF_OURS: Mapping[str, Callable[[str], Model]] = MappingProxyType(
    {
        'azure-responses': _azure_responses,
        'bedrock': _bedrock,
        'deepinfra': _deepinfra,
        'vertex': _vertex,
        'xai': _xai,
        'xai-responses': _xai_responses,
    }
)
"""How models are made of lanes that the framework has no prefix for, or one for another API."""


_EXTRAS = ('bedrock', 'groq', 'mistral')
"""The lanes whose SDKs do not come with the package, but with extras of their names."""


def canonical(name: str) -> str:
    """The canonical name of what may be an alias, in any case."""
    lowered = name.strip().lower()
    return ALIASES.get(lowered, lowered)


def model_named(name: str) -> Model:
    """The model with a name such as `'anthropic:claude-haiku-4-5'`, of the framework's prefixes or of a lane's names.

    Raises:
        UserError: There is no such model, or no key for it; the message names the variable that it is looked for in.
        LaneDependencyMissing: The SDK of its lane is not installed.
    """
    prefix, colon, rest = name.partition(':')
    if not colon:
        return infer_model(name)
    known = canonical(prefix)
    make = _OF_OURS.get(known)
    if make is not None and not rest:
        raise UserError(f'The name of a model comes after the colon in {name!r}.')
    try:
        if make is not None:
            return make(rest)
        # The framework knows its own prefixes, which are more than the lanes.
        return infer_model(f'{ALIASES[prefix.lower()]}:{rest}' if prefix.lower() in ALIASES else name)
    except ImportError as error:
        if known not in _EXTRAS:
            raise
        raise sdk_missing(known) from error


_ANY_MODEL: Mapping[str, str] = MappingProxyType(
    {
        'openai': 'openai-responses:gpt-5-mini',
        'azure': 'azure:gpt-5-mini',
        'anthropic': 'anthropic:claude-haiku-4-5',
        'google': 'google:gemini-2.5-flash',
        'vertex': 'vertex:gemini-2.5-flash',
        'bedrock': 'bedrock:us.amazon.nova-lite-v1:0',
        'groq': 'groq:openai/gpt-oss-20b',
        'mistral': 'mistral:mistral-small-latest',
        'together': 'together:openai/gpt-oss-20b',
        'fireworks': 'fireworks:accounts/fireworks/models/gpt-oss-20b',
        'deepinfra': 'deepinfra:openai/gpt-oss-20b',
        'xai': 'xai:grok-4',
    }
)
"""A model of each lane that a name alone makes, for what is asked of the lane and not of the model."""


def model_of_lane(name: str) -> Model:
    """A model of a lane, with the key that is in the environment.

    Raises:
        UserError: No model is made of the lane's name alone, or there is no key.
    """
    if (model := _ANY_MODEL.get(name)) is None:
        raise UserError(f'The lane {name!r} takes a model, whose client says where to ask.')
    return model_named(model)
