"""What a program on LangChain does: run by langchain_client_test.py with the address of a server. Prints JSON."""

import json
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

address, key = sys.argv[1:]
model = ChatOpenAI(base_url=address + "/v1", api_key=key, model="any", temperature=0, max_tokens=16, max_retries=0,
                   stream_usage=True, extra_body={"ignore_eos": True})
messages = [SystemMessage("that"), HumanMessage("here stone river")]

whole = model.invoke(messages)
chunks = list(model.stream(messages))
usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
batch = model.batch([messages, messages])
# The next turn of the same conversation: what is known need not be read again.
later = model.invoke([*messages, AIMessage(whole.content), HumanMessage("north")])
sure = model.bind(logprobs=True, top_logprobs=2).invoke(messages)

print(json.dumps({
    "whole": whole.content,
    "finish": whole.response_metadata["finish_reason"],
    "usage": whole.usage_metadata["output_tokens"],
    "streamed": "".join(chunk.content for chunk in chunks),
    "streamed_usage": sum(one["output_tokens"] for one in usage),
    "batch": [one.content for one in batch],
    "cached": later.usage_metadata["input_token_details"]["cache_read"],
    "logprobs": len(sure.response_metadata["logprobs"]["content"]),
}))  # fmt: skip
