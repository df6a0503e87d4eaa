"""Texts, parameters, errors."""
import asyncio
import math
import re
import unittest

import tern

from .world import GREEDY, MODEL, ROOT, SMALL, open_model


class Declarations(unittest.TestCase):
    def test_the_functions_are_those_of_the_header(self):
        """Every function of the library by its name and its number of parameters."""
        header = re.sub(r"/\*.*?\*/", "", (ROOT / "include/tern.h").read_text(), flags=re.S)
        declared = {}
        for name, params in re.findall(r"TERN_API[^;{]*?\b(tern_\w+)\(([^;]*)\);", header):
            flat = re.sub(r"\([^()]*\)", "", params)
            declared[name] = 0 if flat.strip() == "void" else flat.count(",") + 1
        used = {name: len(params) for name, _, params in tern._library._FUNCTIONS}
        self.assertGreater(len(declared), 25)
        self.assertEqual(used, {name: declared.get(name) for name in used})

    def test_numbers_that_do_not_fit_are_refused(self):
        for options in ({"memory_limit": -1}, {"memory_limit": 1 << 64}, {"models_max": 1 << 32}, {"keep_alive": 1e10},
                        {"keep_alive": -1}):
            with self.assertRaises(ValueError, msg=options):
                tern.Runtime(**options)


class Generating(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.m = open_model()

    @classmethod
    def tearDownClass(cls):
        cls.m.close()

    def test_the_stream_is_the_completion_in_pieces(self):
        whole = self.m.generate("Once upon a time", max_tokens=24, **GREEDY)
        with self.m.stream("Once upon a time", max_tokens=24, **GREEDY) as stream:
            pieces = list(stream)
        self.assertEqual("".join(pieces), whole.text)
        self.assertEqual(stream.result, tern.Completion(whole.text, whole.tokens, whole.finish, stream.result.stats,
                                                        stream.result.seed))
        self.assertGreater(len(pieces), 5)
        self.assertEqual(whole.finish, "length")
        self.assertEqual(len(whole.ids), 24)
        self.assertEqual(whole.stats.tokens, 24)
        self.assertGreater(whole.stats.prompt_tokens, 1)

    def test_parameters_that_would_be_cut_are_refused(self):
        for params in ({"deadline": 1e10}, {"deadline": -1}, {"deadline": math.inf}, {"deadline": math.nan}, {"stop": "a\0b"},
                       {"stop": ["x", "\0"]}, {"grammar": 'root ::= "a"\0'}, {"json_schema": '{"type": "string"}\0'},
                       {"logprobs": 1 << 32}, {"max_tokens": 1 << 32}):
            with self.assertRaises(ValueError, msg=params):
                self.m.generate("text", max_tokens=params.pop("max_tokens", 2), **params)

    def test_a_session_keeps_its_messages(self):
        s = self.m.session(system="You tell short stories about animals.", max_tokens=8, temperature=0)
        first = s.send("Tell me about a bird who lives in a tree by the river.")
        pieces = "".join(s.stream("And then?"))
        third = s.send("Go on.", max_tokens=4)
        self.assertEqual([m["role"] for m in s.messages], ["system"] + 3 * ["user", "assistant"])
        self.assertEqual([m["content"] for m in s.messages[2::2]], [first.text, pieces, third.text])
        self.assertGreater(third.stats.cached_tokens, 0)
        self.assertEqual(self.m.chat(s.messages[:-1], max_tokens=4, temperature=0).text, third.text)
        next(iter(s.stream("A question whose stream is closed")))
        with self.assertRaises(ValueError):
            s.send("x", deadline=-1)
        self.assertEqual(len(s.messages), 7)

    def test_a_session_with_asyncio(self):
        async def ask():
            s = self.m.session(max_tokens=8, temperature=0)
            first = await s.asend("Tell me about a bird who lives in a tree by the river, and about its friends.")
            pieces = "".join([piece async for piece in s.astream("And then?")])
            self.assertEqual([m["content"] for m in s.messages[1::2]], [first.text, pieces])
            return (await s.asend("Go on.")).stats.cached_tokens

        self.assertGreater(asyncio.run(ask()), 0)

    def test_eight_greedy_tokens(self):
        c = self.m.generate("text", max_tokens=8, temperature=0)
        self.assertTrue(c.text)
        self.assertLessEqual(len(c.tokens), 8)
        self.assertEqual(str(c), c.text)

    def test_equal_seeds_give_equal_texts(self):
        a = self.m.generate("The dog", max_tokens=20, seed=7, temperature=0.9, raw=True)
        b = self.m.generate("The dog", max_tokens=20, seed=7, temperature=0.9, raw=True)
        self.assertEqual((a.text, a.seed), (b.text, 7))

    def test_chat_whole_and_streamed(self):
        messages = [{"role": "user", "content": "Tell me a story about a frog."}]
        whole = self.m.chat(messages, max_tokens=60, temperature=0)
        self.assertIn("frog", whole.text)
        self.assertEqual("".join(self.m.chat(messages, stream=True, max_tokens=60, temperature=0)), whole.text)
        self.assertEqual(self.m.chat("Tell me a story about a frog.", max_tokens=60, temperature=0).text, whole.text)

    def test_a_prompt_of_ids_is_the_prompt_of_its_text(self):
        ids = self.m.tokenize("Once upon a time", special=True)
        a = self.m.generate(ids, max_tokens=10, temperature=0)
        self.assertEqual(a.ids, self.m.generate("Once upon a time", max_tokens=10, **GREEDY).ids)

    def test_text_goes_to_ids_and_back(self):
        text = "Lily and Tom saw a café."
        ids = self.m.tokenize(text)
        self.assertEqual(self.m.detokenize(ids), text)
        self.assertEqual(self.m.tokenize(""), [])
        self.assertEqual(self.m.detokenize([]), "")

    def test_schema_and_grammar_are_followed(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 7, "maximum": 9}},
                  "required": ["age"]}
        c = self.m.generate("How old?", max_tokens=60, temperature=0, json_schema=schema)
        self.assertIn(c.json()["age"], (7, 8, 9))
        c = self.m.generate("Is it a frog?", max_tokens=20, temperature=0, grammar='root ::= "yes" | "no"')
        self.assertIn(c.text, ("yes", "no"))
        with self.assertRaises(tern.InvalidError):
            self.m.generate("x", grammar="root ::= (")

    def test_stop_strings_end_the_text(self):
        whole = self.m.generate("Once upon a time", max_tokens=60, **GREEDY).text
        self.assertIn("little", whole)
        cut = self.m.generate("Once upon a time", max_tokens=60, stop=["little", "zzz"], **GREEDY)
        self.assertEqual((cut.text, cut.finish), (whole[:whole.index("little")], "stop"))

    def test_log_probabilities(self):
        c = self.m.generate("Once upon a time", max_tokens=5, logprobs=3, **GREEDY)
        for t in c.tokens:
            self.assertEqual(len(t.top), 3)
            self.assertEqual(t.top[0].id, t.id)
            self.assertLessEqual(t.logprob, 0)
        self.assertIsNone(self.m.generate("a", max_tokens=1).tokens[0].logprob)
        self.assertEqual(self.m.generate("a", max_tokens=1, logprobs=True).tokens[0].top, ())

    def test_embeddings_have_length_one(self):
        one = self.m.embed("a frog")
        many = self.m.embed(["a frog", "a car"] * 20)
        self.assertEqual(len(one), self.m.info.embedding)
        self.assertAlmostEqual(math.sqrt(sum(x * x for x in one)), 1, places=3)
        self.assertEqual(len(many), 40)
        self.assertEqual(self.m.embed([]), [])

    def test_facts(self):
        i = self.m.info
        self.assertEqual((i.arch, i.context, i.state, i.path), ("llama", 512, "ready", MODEL))
        self.assertTrue(i.has_chat)
        self.assertGreater(i.resident_bytes, 0)
        self.assertGreater(i.weight_bytes, 8 << 20)
        self.assertGreater(self.m.counts.n_submitted, 0)
        self.assertRegex(tern.library_version(), r"^\d+\.\d+")

    def test_errors_have_the_codes_of_tern_h(self):
        with self.assertRaises(tern.ContextError) as c:
            self.m.generate([1] * 5000)
        self.assertEqual(c.exception.code, -7)
        self.assertEqual(c.exception.name, "context_exceeded")
        with self.assertRaises(tern.TernError) as c:
            self.m.generate("x", temperature=9)
        self.assertEqual(c.exception.code, -1)
        self.assertIsInstance(c.exception, ValueError)
        with self.assertRaises(tern.TernError):
            self.m.detokenize([10 ** 6])
        with self.assertRaises(tern.TernError):
            self.m.chat([{"role": "robot", "content": "x"}])
        with self.assertRaisesRegex(TypeError, "max_token"):
            self.m.generate("x", max_token=3)

    def test_numbers_out_of_range_are_refused(self):
        for given in ({"seed": 1 << 64}, {"seed": -(1 << 63) - 1}, {"max_tokens": (1 << 32) + 1}, {"priority": 1 << 40}):
            with self.assertRaises(ValueError, msg=given):
                self.m.generate("x", **{"max_tokens": 1, **given})
        with self.assertRaises(ValueError):
            self.m.generate([1, (1 << 32) + 1], max_tokens=1)
        with self.assertRaises(ValueError):
            self.m.detokenize([(1 << 32) + 1])
        with self.assertRaises(ValueError):
            open_model(context=(1 << 32) + 64)
        self.assertEqual(self.m.generate("x", max_tokens=1, seed=-1).seed, (1 << 64) - 1)

    def test_messages_have_a_role_and_a_content(self):
        for messages in ([], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": None}], [{"role": 1, "content": "x"}]):
            with self.assertRaises(ValueError, msg=messages):
                self.m.chat(messages)

    def test_codes_are_those_of_the_header(self):
        header = (ROOT / "include/tern.h").read_text()
        import re
        codes = {int(c) for c in re.findall(r"TERN_E_\w+ = (-\d+)", header)}
        from tern._errors import BY_CODE
        self.assertEqual(set(BY_CODE), codes)


class Opening(unittest.TestCase):
    def test_a_missing_model_is_an_error(self):
        with self.assertRaises(tern.TernError) as c:
            tern.Model("/no/such/model.gguf")
        self.assertIn("/no/such/model.gguf", str(c.exception))
        with self.assertRaises(tern.TernError):
            tern.Model(str(ROOT / "README.md"))
        with self.assertRaisesRegex(TypeError, "contexts"):
            tern.Model(MODEL, contexts=3)

    def test_structs_have_the_recorded_layout(self):
        from tern import _library as lib
        structs = {"tern_options": lib.Options, "tern_params": lib.Params, "tern_message": lib.Message,
                   "tern_event": lib.Event, "tern_stats": lib.RequestStats, "tern_model_info": lib.Info,
                   "tern_top": lib.Top, "tern_runtime_options": lib.RuntimeOptions, "tern_usage": lib.RuntimeUsage,
                   "tern_counts": lib.ModelCounts}
        import ctypes
        lines = (ROOT / "tests/abi/layout.txt").read_text().split("\n")
        n = 0
        for line in filter(None, lines[1:]):
            name, value = line.split()
            struct, _, field = name.partition(".")
            got = getattr(structs[struct], field).offset if field else ctypes.sizeof(structs[struct])
            self.assertEqual(got, int(value), name)
            n += bool(field)
        self.assertEqual(n, sum(len(s._fields_) for s in structs.values()))


class Runtimes(unittest.TestCase):
    def test_models_by_name_with_room_for_one(self):
        with tern.Runtime(models_max=1) as rt:
            a = rt.load(MODEL, name="ada", **SMALL)
            text = a.generate("Once upon a time", max_tokens=10, **GREEDY).text
            b = rt.load(MODEL, "bob", **SMALL)
            self.assertEqual(rt.names(), ["ada", "bob"])
            self.assertEqual((a.info.state, b.info.state), ("unloaded", "ready"))
            self.assertEqual(rt["ada"].generate("Once upon a time", max_tokens=10, **GREEDY).text, text)
            self.assertEqual(a.info.n_loads, 2)
            self.assertEqual(rt.usage.n_loaded, 1)
            self.assertTrue(rt.unload("ada", timeout=60))
            self.assertEqual(rt.names(), ["bob"])
            with self.assertRaises(tern.NotFoundError):
                a.generate("x")
            with self.assertRaises(LookupError):
                rt["ada"]
            with self.assertRaises(tern.InvalidError):
                rt.load(MODEL, "bob", **{**SMALL, "context": 64})
            a.close(), b.close()

    def test_a_memory_limit_refuses_a_model(self):
        with tern.Runtime(memory_limit=4 << 20) as rt:
            with self.assertRaises(tern.MemoryLimitError):
                rt.load(MODEL, **SMALL)
            self.assertEqual(rt.names(), [])


if __name__ == "__main__":
    unittest.main()
