"""What a program with OpenAI's official client does: run by openai_client_test.py with the address of a server. Prints JSON."""

import json
import sys

import openai

address, key = sys.argv[1:]
client = openai.OpenAI(base_url=address + "/v1", api_key=key, max_retries=0)
(model,) = client.models.list().data
settings = {"model": model.id, "temperature": 0, "max_tokens": 16, "extra_body": {"ignore_eos": True}}
messages = [{"role": "system", "content": "that"}, {"role": "user", "content": "here stone river"}]

whole = client.chat.completions.create(messages=messages, **settings)
pieces, usage = [], None
for chunk in client.chat.completions.create(messages=messages, stream=True, stream_options={"include_usage": True}, **settings):
    pieces += [choice.delta.content or "" for choice in chunk.choices]
    usage = chunk.usage or usage
likely = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, **settings).choices[0].logprobs.content
text = client.completions.create(prompt="that river", n=2, **settings)


def refused(call):
    try:
        call()
    except openai.APIStatusError as problem:
        return [type(problem).__name__, problem.status_code]
    return None


print(json.dumps({
    "model": model.id,
    "whole": whole.choices[0].message.content,
    "finish": whole.choices[0].finish_reason,
    "usage": whole.usage.completion_tokens,
    "streamed": "".join(pieces),
    "streamed_usage": usage.completion_tokens,
    "cached": usage.prompt_tokens_details.cached_tokens,
    "texts": len(text.choices),
    "logprobs": len(likely),
    "likely": len(likely[0].top_logprobs),
    "bad_request": refused(lambda: client.completions.create(prompt="x", **{**settings, "temperature": -3})),
    "bad_key": refused(lambda: client.with_options(api_key="no").models.list()),
}))  # fmt: skip
