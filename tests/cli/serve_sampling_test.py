#!/usr/bin/env python3
"""`tierkv serve`: how likely tokens are, and what they may be: logprobs, grammars, biases, an echoed prompt."""

import json
import math
import re
import unittest

from server import CHAT, TEXT_COMPLETION
from served import Served

MESSAGES = [{"role": "user", "content": "here stone river"}]


class ServeLogprobsTest(Served):
    def chat(self, **fields):
        body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": True, **fields}
        reply = self.server.post(CHAT, body)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json()["choices"][0]

    def test_a_chat_names_the_likeliest_tokens(self):
        choice = self.chat(top_logprobs=3)
        tokens = choice["logprobs"]["content"]
        self.assertEqual(len(tokens), 12)
        self.assertEqual(b"".join(bytes(token["bytes"]) for token in tokens).decode(errors="replace"),
                         choice["message"]["content"])
        for token in tokens:
            self.assertLessEqual(token["logprob"], 0)
            self.assertEqual(len(token["top_logprobs"]), 3)
            # At temperature 0 the likeliest token is the one that was taken.
            best = token["top_logprobs"][0]
            self.assertEqual((best["token"], best["logprob"]), (token["token"], token["logprob"]))
            chances = [math.exp(one["logprob"]) for one in token["top_logprobs"]]
            self.assertEqual(chances, sorted(chances, reverse=True))
            self.assertLessEqual(sum(chances), 1 + 1e-9)
        self.assertEqual(self.chat()["logprobs"]["content"][0]["top_logprobs"], [])
        self.assertIsNone(self.chat(logprobs=False)["logprobs"])

    def test_all_tokens_together_are_certain(self):
        size = self.server.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
        first = self.server.complete("that", 1, logprobs=20, temperature=0)["choices"][0]["logprobs"]
        self.assertLess(sum(math.exp(p) for p in first["top_logprobs"][0].values()), 1)
        self.assertGreater(size, 20)
        # A bias changes what is taken, and not how likely the model found it.
        (token,) = self.server.post("/tokenize", {"content": "q"}).json()["tokens"][-1:]
        forced = self.server.complete("that", 1, logprobs=1, logit_bias={str(token): 100})["choices"][0]["logprobs"]
        self.assertLess(forced["token_logprobs"][0], first["token_logprobs"][0])
        self.assertEqual(list(forced["top_logprobs"][0].values()), first["token_logprobs"])

    def test_completions_have_their_own_shape(self):
        # Letters alone: what a model of random weights says otherwise is no UTF-8.
        (choice,) = self.server.complete("that river", 10, logprobs=2, grammar="root ::= [ -~]+")["choices"]
        found = choice["logprobs"]
        self.assertEqual({len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}, {10})
        self.assertEqual("".join(found["tokens"]), choice["text"])
        for at, token in zip(found["text_offset"], found["tokens"]):
            self.assertEqual(choice["text"][at: at + len(token)], token)
        self.assertTrue(all(len(likely) == 2 for likely in found["top_logprobs"]))
        self.assertEqual(self.server.complete("that", 2, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"], [{}, {}])

    def test_a_stream_has_the_same(self):
        whole = self.chat(top_logprobs=2)["logprobs"]["content"]
        body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": True, "top_logprobs": 2}
        _, _, events = self.server.open_stream(CHAT, body)
        chunks = [json.loads(event)["choices"][0] for event in list(events)[:-1]]
        streamed = [token for chunk in chunks if chunk["logprobs"] for token in chunk["logprobs"]["content"]]
        self.assertEqual([token["token"] for token in streamed], [token["token"] for token in whole])
        offsets = []
        _, _, events = self.server.open_stream(TEXT_COMPLETION, {"prompt": "that river", "max_tokens": 10, "temperature": 0,
                                                                 "ignore_eos": True, "logprobs": 1})
        for event in list(events)[:-1]:
            found = json.loads(event)["choices"][0]["logprobs"]
            offsets += found["text_offset"] if found else []
        self.assertEqual(offsets, self.server.complete("that river", 10, logprobs=1)["choices"][0]["logprobs"]["text_offset"])

    def test_what_a_stop_string_cuts_off_has_no_tokens(self):
        whole = self.server.complete("that river", 60)["choices"][0]["text"]
        stop = re.findall(r"[!-~]{3}", whole)[-1]
        (cut,) = self.server.complete("that river", 60, stop=stop, logprobs=0)["choices"]
        tokens = cut["logprobs"]["tokens"]
        self.assertTrue("".join(tokens).startswith(cut["text"]))
        self.assertTrue(cut["text"].startswith("".join(tokens[:-1])))

    def test_what_cannot_be(self):
        body = {"messages": MESSAGES}
        self.assertEqual(self.assert_refused(self.server.post(CHAT, {**body, "top_logprobs": 2}), 400)["param"], "top_logprobs")
        for fields in ({"logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}):
            self.assert_refused(self.server.post(CHAT, {**body, **fields}), 400)
        self.assert_refused(self.server.post(TEXT_COMPLETION, {"prompt": "that", "logprobs": True}), 400)


class ServeGrammarTest(Served):
    def text(self, grammar, **fields):
        (choice,) = self.server.complete("that", 40, grammar=grammar, **fields)["choices"]
        return choice["text"], choice["finish_reason"]

    def test_only_what_fits_is_written(self):
        for seed in range(4):
            for temperature in (0, 1.5):
                fields = {"temperature": temperature, "seed": seed, "top_k": 0, "top_p": 1, "min_p": 0}
                said, finish = self.text('root ::= "yes" | "no"', **fields)
                self.assertIn(said, ("yes", "no"))
                self.assertEqual(finish, "stop")
                self.assertRegex(self.text("root ::= [0-9]{2} \"-\" [a-f]+", **fields)[0], r"^[0-9]{2}-[a-f]*$")

    def test_a_stream_and_a_chat_have_it_too(self):
        body = {"messages": MESSAGES, "grammar": 'root ::= "naïve 雪"', "max_tokens": 40}
        self.assertEqual(self.server.post(CHAT, body).json()["choices"][0]["message"]["content"], "naïve 雪")
        _, _, events = self.server.open_stream(CHAT, body)
        chunks = [json.loads(event)["choices"][0]["delta"] for event in list(events)[:-1]]
        self.assertEqual("".join(chunk.get("content") or "" for chunk in chunks), "naïve 雪")

    def test_the_tokens_are_as_likely_as_without_it(self):
        free = self.server.complete("that", 1, logprobs=20)["choices"][0]["logprobs"]["top_logprobs"][0]
        bound = self.server.complete("that", 1, logprobs=20, grammar="root ::= [a-z]+")["choices"][0]["logprobs"]["top_logprobs"][0]
        self.assertEqual(bound, free)

    def test_json_is_json(self):
        for seed in range(3):
            body = {"messages": MESSAGES, "response_format": {"type": "json_object"}, "max_tokens": 400, "seed": seed,
                    "temperature": 1, "logit_bias": self.closing_bias()}
            reply = self.server.post(CHAT, body).json()["choices"][0]
            if reply["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(reply["message"]["content"]), dict)
            else:
                self.assertTrue(reply["message"]["content"].startswith("{"))

    def closing_bias(self):
        """A model of random weights seldom closes a bracket by itself."""
        return {str(self.server.post("/tokenize", {"content": mark}).json()["tokens"][-1]): 8 for mark in '"}]'}

    def test_a_wrong_grammar_says_what_is_wrong(self):
        for grammar, saying in (('root ::= "a', "line 1"), ("root ::= other", "other"), ('start ::= "a"', "root"),
                                ('root ::= root "a" | "b"', "itself"), ('root ::= "a"{1000000}', "repetitions"),
                                ("root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "deeper"), ("x" * 100000, "longer")):
            with self.subTest(grammar[:30]):
                error = self.assert_refused(self.server.post(TEXT_COMPLETION, {"prompt": "that", "grammar": grammar}), 400, saying)
                self.assertEqual(error["param"], "grammar")
        both = {"prompt": "that", "grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}
        self.assert_refused(self.server.post(TEXT_COMPLETION, both), 400, "both")

    def test_one_with_endless_readings_ends_alone(self):
        (token,) = self.server.post("/tokenize", {"content": "a"}).json()["tokens"][-1:]
        body = {"prompt": "that", "grammar": 'root ::= "a" root "b" | "a" root "c" | "d"', "logit_bias": {str(token): 100},
                "max_tokens": 64, "temperature": 0}
        self.assert_refused(self.server.post(TEXT_COMPLETION, body), 400, "too long")
        self.assertEqual(self.server.complete("that", 2)["usage"]["completion_tokens"], 2)


class ServeEchoAndBiasTest(Served):
    def test_the_prompt_comes_first(self):
        plain = self.server.complete("that river", 6)["choices"][0]["text"]
        self.assertEqual(self.server.complete("that river", 6, echo=True)["choices"][0]["text"], "that river" + plain)
        tokens = self.server.post("/tokenize", {"content": "that river", "add_special": True}).json()["tokens"]
        self.assertTrue(self.server.complete(tokens, 6, echo=True)["choices"][0]["text"].strip().endswith(plain.strip()))
        body = {"prompt": ["that", "here"], "max_tokens": 3, "temperature": 0, "echo": True}
        texts = [choice["text"] for choice in self.server.post(TEXT_COMPLETION, body).json()["choices"]]
        _, _, events = self.server.open_stream(TEXT_COMPLETION, body)
        streamed = ["", ""]
        for event in list(events)[:-1]:
            (choice,) = json.loads(event)["choices"]
            streamed[choice["index"]] += choice["text"]
        self.assertEqual(streamed, texts)
        self.assertTrue(texts[0].startswith("that") and texts[1].startswith("here"))
        self.assert_refused(self.server.post(TEXT_COMPLETION, {"prompt": "that", "echo": True, "logprobs": 1}), 400, "echo")

    def test_a_bias_makes_a_token_certain_or_impossible(self):
        one, other = (self.server.post("/tokenize", {"content": letter}).json()["tokens"][-1] for letter in "qz")
        for bias in ({str(one): 100}, [[one, 100]], {str(one): 100, str(other): 60}):
            self.assertEqual(self.server.complete("that", 5, logit_bias=bias)["choices"][0]["text"].strip(), "qqqqq")
        text = self.server.complete("that", 5, logit_bias=[[one, 100], [one, -100], [other, 60]])["choices"][0]["text"]
        self.assertEqual(text.strip(), "zzzzz")

    def test_what_cannot_be(self):
        for bias in ({"x": 1}, {"1": "a"}, {"1": 101}, {"99999999": 1}, {"-1": 1}, [1], [[1]], [[1.5, 1]], "1", {"": 1}):
            with self.subTest(bias):
                error = self.assert_refused(self.server.post(TEXT_COMPLETION, {"prompt": "that", "logit_bias": bias}), 400)
                self.assertEqual(error["param"], "logit_bias")


if __name__ == "__main__":
    unittest.main()
