"""Turns the chat completion that xAI answers a batched request for the Responses API with into that API's own answer.

The user's own model then reads it as it reads a live answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .lines import dump_json, list_of_objects, object_in, parse_object

_FINISHED: dict[str, str] = {'length': 'max_output_tokens', 'content_filter': 'content_filter'}
"""Why the Responses API calls an answer incomplete, by the reason that Chat Completions gives for its end."""


def as_response(body: str | None) -> str | None:
    """The body of the Responses API with what a chat completion says; what is none is left as it is."""
    completion = parse_object((body or '').encode('utf-8', 'surrogatepass'))
    if completion is None or not (choices := list_of_objects(completion.get('choices'))):
        return body
    message, reason = object_in(choices[0], 'message'), choices[0].get('finish_reason')
    incomplete = _FINISHED.get(reason) if isinstance(reason, str) else None
    return dump_json(
        {
            'id': completion.get('id'),
            'object': 'response',
            'created_at': completion.get('created'),
            'model': completion.get('model'),
            'status': 'incomplete' if incomplete else 'completed',
            'incomplete_details': {'reason': incomplete} if incomplete else None,
            'error': None,
            'output': list(_output(message)),
            'parallel_tool_calls': True,
            'tool_choice': 'auto',
            'tools': [],
            'service_tier': completion.get('service_tier'),
            'usage': _usage(object_in(completion, 'usage')),
        }
    )


def _output(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The output items of the Responses API with what a message of a chat completion says.

    Their own IDs are not known. None is made up, as xAI may be asked to go on from an item that it never made.
    """
    if thought := message.get('reasoning_content'):
        # By this ID the framework knows it for text, and not for an item that xAI has.
        summary = [{'type': 'summary_text', 'text': thought}]
        yield {'type': 'reasoning', 'id': 'reasoning_content', 'summary': summary}
    content: list[dict[str, Any]] = []
    if text := message.get('content'):
        content.append({'type': 'output_text', 'text': text, 'annotations': []})
    if refusal := message.get('refusal'):
        content.append({'type': 'refusal', 'refusal': refusal})
    if content:
        yield {'type': 'message', 'id': None, 'role': 'assistant', 'status': 'completed', 'content': content}
    for call in list_of_objects(message.get('tool_calls')):
        function = object_in(call, 'function')
        yield {
            'type': 'function_call',
            'call_id': call.get('id'),
            'name': function.get('name'),
            'arguments': function.get('arguments') or '',
            'status': 'completed',
        }


def _usage(usage: Mapping[str, Any]) -> dict[str, Any] | None:
    """The usage of the Responses API, which counts reasoning as output; xAI's chat completions count it apart."""
    if not usage:
        return None
    spent, made, total = (_number(usage, name) for name in ('prompt_tokens', 'completion_tokens', 'total_tokens'))
    output = max(made, total - spent)
    own = {name: count for name, count in usage.items() if isinstance(count, int) and not name.endswith('_tokens')}
    return {
        **own,
        'input_tokens': spent,
        'input_tokens_details': {'cached_tokens': _number(object_in(usage, 'prompt_tokens_details'), 'cached_tokens')},
        'output_tokens': output,
        'output_tokens_details': {
            'reasoning_tokens': _number(object_in(usage, 'completion_tokens_details'), 'reasoning_tokens')
        },
        'total_tokens': spent + output,
    }


def _number(counts: Mapping[str, Any], name: str) -> int:
    return count if isinstance(count := counts.get(name), int) else 0
