#!/usr/bin/env python3
"""`tierkv serve`: OpenAI's routes, and what llama-server's clients use beside them."""

import json
import re
import unittest

from server import CHAT, TEXT_COMPLETION
from served import Served, text_of


class ServeOpenAiTest(Served):
    def test_health_models_and_properties(self):
        for path in ("/health", "/v1/health", "/ready"):
            self.assertEqual((self.server.get(path).status, self.server.get(path).json()), (200, {"status": "ok"}))
        (model,) = self.server.get("/v1/models").json()["data"]
        self.assertEqual((model["id"], model["object"], model["meta"]["n_ctx_train"]), ("llama", "model", 4096))
        self.assertEqual(self.server.get("/v1/models/llama").json()["id"], "llama")
        self.assert_refused(self.server.get("/v1/models/other"), 404)
        self.assertEqual(self.server.get("/props").json()["total_slots"], 4)

    def test_a_completion_has_text_usage_and_timings(self):
        value = self.server.complete("that river sees", 12)
        (choice,) = value["choices"]
        self.assertEqual((value["object"], choice["index"], choice["finish_reason"]), ("text_completion", 0, "length"))
        self.assertNotEqual(choice["text"], "")
        tokens = len(self.server.post("/tokenize", {"content": "that river sees", "add_special": True}).json()["tokens"])
        usage = value["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]), (tokens, 12, tokens + 12))
        self.assertIn("cached_tokens", usage["prompt_tokens_details"])
        self.assertEqual(value["timings"]["predicted_n"], 12)
        self.assertEqual(value["timings"]["cache_n"] + value["timings"]["prompt_n"], tokens)
        self.assertGreater(value["timings"]["predicted_ms"], 0)

    def test_a_stream_says_what_the_whole_answer_says(self):
        for path, body in ((TEXT_COMPLETION, {"prompt": "the iron tide"}),
                           (CHAT, {"messages": [{"role": "system", "content": "that"},
                                                {"role": "user", "content": [{"type": "text", "text": "here"}]}]})):
            with self.subTest(path):
                body = {**body, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
                whole = self.server.post(path, body).json()
                _, response, events = self.server.open_stream(path, {**body, "stream_options": {"include_usage": True}})
                self.assertEqual((response.status, response.headers["Content-Type"]), (200, "text/event-stream"))
                *events, done = list(events)
                self.assertEqual(done, "[DONE]")
                chunks = [json.loads(event) for event in events]
                self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
                usage = chunks.pop()
                self.assertEqual((usage["choices"], usage["usage"]["completion_tokens"]), ([], 20))
                self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
                self.assertIn("timings", chunks[-1])
                if path == CHAT:
                    self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
                    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
                    self.assertEqual(text, whole["choices"][0]["message"]["content"])
                else:
                    self.assertEqual("".join(chunk["choices"][0]["text"] for chunk in chunks), whole["choices"][0]["text"])

    def test_stop_ends_the_text_before_it(self):
        whole = self.server.complete("that river", 60)["choices"][0]["text"]
        stop = re.findall(r"[!-~]{3}", whole)[-1]
        (cut,) = self.server.complete("that river", 60, stop=["never said", stop])["choices"]
        self.assertEqual((cut["finish_reason"], cut["text"]), ("stop", whole[: whole.index(stop)]))

    def test_seed_choices_and_penalties(self):
        def texts(**fields):
            value = self.server.complete("here stone", 24, **{"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, **fields})
            return [choice["text"] for choice in value["choices"]]

        self.assertEqual(texts(seed=5), texts(seed=5))
        self.assertNotEqual(texts(seed=5), texts(seed=6))
        three = texts(seed=5, n=3)
        self.assertEqual(len(set(three)), 3)
        greedy = self.server.complete("here", 60)["choices"][0]["text"]
        self.assertNotEqual(self.server.complete("here", 60, frequency_penalty=2)["choices"][0]["text"], greedy)

    def test_several_prompts_and_tokens_as_prompts(self):
        prompts = ["that river", "the stone", "here"]
        alone = [self.server.complete(prompt)["choices"][0]["text"] for prompt in prompts]
        value = self.server.complete(prompts, n=2)
        self.assertEqual([choice["index"] for choice in value["choices"]], list(range(6)))
        self.assertEqual([choice["text"] for choice in value["choices"]], [text for text in alone for _ in range(2)])
        tokens = [self.server.post("/tokenize", {"content": prompt, "add_special": True}).json()["tokens"] for prompt in prompts]
        self.assertEqual([c["text"] for c in self.server.complete(tokens)["choices"]], alone)
        self.assertEqual(self.server.complete(tokens[0])["choices"][0]["text"], alone[0])

    def test_tokens_and_templates(self):
        tokens = self.server.post("/tokenize", {"content": "that river", "with_pieces": True}).json()["tokens"]
        back = self.server.post("/detokenize", {"tokens": [token["id"] for token in tokens]}).json()["content"]
        self.assertEqual(back.strip(), "that river")
        prompt = self.server.post("/apply-template", {"messages": [{"role": "user", "content": "Hello"}]}).json()["prompt"]
        self.assertEqual(prompt, "User: Hello\nAssistant:")

    def test_a_full_context_ends_an_answer_and_refuses_a_prompt(self):
        value = self.server.complete(text_of(1, 3000), 5000)
        self.assertEqual(value["choices"][0]["finish_reason"], "length")
        self.assertLessEqual(value["usage"]["total_tokens"], 4096)
        error = self.assert_refused(self.server.post(TEXT_COMPLETION, {"prompt": "that " * 5000}), 400, "4096")
        self.assertEqual(error["code"], "context_length_exceeded")


if __name__ == "__main__":
    unittest.main()
