"""Lifetimes, threads, cancellation, interruption, asyncio; nothing is left behind."""
import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import unittest

import tern

from .world import GREEDY, LIMIT, n_fds, open_model, wait_until

ENDLESS = {**GREEDY, "ignore_eos": True}


class Closing(unittest.TestCase):
    def test_a_stream_goes_on_when_its_model_is_closed(self):
        m = open_model()
        want = m.generate("Once upon a time", max_tokens=20, **GREEDY).text
        stream = m.stream("Once upon a time", max_tokens=20, **GREEDY)
        next(stream)
        m.close()
        m.close()
        for _ in stream:
            pass
        self.assertEqual(stream.result.text, want)
        with self.assertRaisesRegex(ValueError, "closed"):
            m.generate("x")

    def test_closing_an_iterator_cancels_its_request(self):
        with open_model(context=4096, kv_tokens=8192) as m:
            stream = m.stream("The", **ENDLESS)
            next(stream)
            stream.close()
            self.assertEqual(list(stream), [])
            wait_until(lambda: m.counts.n_cancelled == 1, "the cancel")

    def test_a_dropped_iterator_cancels_its_request(self):
        with open_model(context=4096, kv_tokens=8192) as m:
            for _ in m.stream("The", **ENDLESS):
                break
            gc.collect()
            wait_until(lambda: m.counts.n_cancelled == 1, "the cancel")

    def test_garbage_collection_closes_models(self):
        before = n_fds()
        for _ in range(3):
            m = open_model()
            m.generate("x", max_tokens=1)
            del m
        gc.collect()
        self.assertEqual(n_fds(), before)

    def test_another_thread_cancels(self):
        with open_model(context=4096, kv_tokens=8192) as m:
            stream = m.stream("The", **ENDLESS)
            next(stream)
            t = threading.Thread(target=stream.cancel)
            t.start()
            t.join(LIMIT)
            for _ in stream:
                pass
            self.assertEqual(stream.result.finish, "cancelled")
            other = m.stream("The", **ENDLESS)
            next(other)
            t = threading.Thread(target=other.close)
            t.start()
            for _ in other:
                pass
            t.join(LIMIT)
            self.assertFalse(t.is_alive())

    def test_a_deadline_is_an_error_and_a_timeout(self):
        with open_model(sequences=1, context=4096, kv_tokens=8192) as m, m.stream("The", **ENDLESS) as first:
            next(first)  # it has the only place, and is not read any more
            with self.assertRaises(tern.DeadlineError) as c:
                m.generate("x", deadline=0.05, max_tokens=5)
            self.assertIsInstance(c.exception, TimeoutError)
            self.assertEqual(c.exception.code, -16)


class Queueing(unittest.TestCase):
    def test_threads_get_the_same_text_through_one_queue(self):
        with open_model(sequences=1, queue=64) as m:
            want = m.generate("Once upon a time", max_tokens=12, **GREEDY).text
            texts, errors = [], []

            def work():
                try:
                    for _ in range(3):
                        texts.append(m.generate("Once upon a time", max_tokens=12, **GREEDY).text)
                except BaseException as e:
                    errors.append(e)

            threads = [threading.Thread(target=work) for _ in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join(LIMIT)
            self.assertEqual(errors, [])
            self.assertEqual(texts, [want] * 18)

    def test_a_full_queue_refuses(self):
        with open_model(sequences=1, queue=2, context=4096, kv_tokens=8192) as m:
            streams = [m.stream("The", **ENDLESS) for _ in range(2)]
            with self.assertRaises(tern.QueueFullError):
                m.stream("The", **ENDLESS)
            for s in streams:
                s.close()
            vectors = None

            def ready():
                nonlocal vectors
                try:
                    vectors = m.embed(["a", "b", "c", "d", "e"])  # waits for its own
                    return True
                except tern.QueueFullError:  # the closed ones still have their places
                    return False

            wait_until(ready, "room in the queue")
            self.assertEqual(len(vectors), 5)


class Interrupting(unittest.TestCase):
    def test_ctrl_c_ends_a_blocking_call(self):
        before = n_fds()
        with open_model(context=4096, kv_tokens=8192, sequences=1) as m, m.stream("The", **ENDLESS) as first:
            next(first)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                m.generate("x", max_tokens=5)  # waits behind the first
            wait_until(lambda: m.counts.n_cancelled == 1, "the cancel")
        gc.collect()
        self.assertEqual(n_fds(), before)

    def test_ctrl_c_in_a_loop_over_a_stream(self):
        with open_model(context=4096, kv_tokens=8192) as m:
            stream = m.stream("The", **ENDLESS)
            with self.assertRaises(KeyboardInterrupt):
                for i, _ in enumerate(stream):
                    if i == 3:
                        os.kill(os.getpid(), signal.SIGINT)
            stream.close()
            wait_until(lambda: m.counts.n_cancelled == 1, "the cancel")

    def test_the_interpreter_ends_with_open_streams(self):
        code = ("import tern, sys\n"
                "m = tern.Model(sys.argv[1], threads=1, context=512)\n"
                "s = m.stream('The', raw=True, ignore_eos=True)\n"
                "print(next(s))\n")
        from .world import MODEL
        done = subprocess.run([sys.executable, "-c", code, MODEL], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.m = open_model(context=2048, kv_tokens=16384)

    async def asyncTearDown(self):
        self.m.close()

    async def test_async_answers_are_those_of_blocking_calls(self):
        want = self.m.generate("Once upon a time", max_tokens=16, **GREEDY)
        got = await self.m.agenerate("Once upon a time", max_tokens=16, **GREEDY)
        self.assertEqual(got.ids, want.ids)
        stream = self.m.astream("Once upon a time", max_tokens=16, **GREEDY)
        self.assertEqual("".join([p async for p in stream]), want.text)
        self.assertEqual(stream.result.ids, want.ids)
        chat = await self.m.achat("Hello", max_tokens=8, temperature=0)
        self.assertEqual("".join([p async for p in self.m.achat_stream("Hello", max_tokens=8, temperature=0)]), chat.text)
        self.assertEqual(len(await self.m.aembed(["a", "b"])), 2)
        self.assertEqual(len(await self.m.aembed("a")), self.m.info.embedding)

    async def test_many_at_once_without_a_thread_each(self):
        before, fds = threading.active_count(), n_fds()
        most = 0

        async def one():
            nonlocal most
            c = await self.m.agenerate("Once upon a time", max_tokens=16, **GREEDY)
            most = max(most, threading.active_count())
            return c.text

        texts = await asyncio.gather(*[one() for _ in range(12)])
        self.assertEqual(len({t[:10] for t in texts}), 1)
        self.assertEqual(most, before)
        self.assertEqual(n_fds(), fds)

    async def test_cancelling_the_task_cancels_the_request(self):
        fds = n_fds()

        async def endless():
            async for _ in self.m.astream("The", **ENDLESS):
                started.set()

        started = asyncio.Event()
        task = asyncio.create_task(endless())
        await started.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        while self.m.counts.n_cancelled < 1:
            await asyncio.sleep(0.005)
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(self.m.agenerate("The", **ENDLESS), 0.1)
        while self.m.counts.n_cancelled < 2:
            await asyncio.sleep(0.005)
        self.assertEqual(n_fds(), fds)

    async def test_aclose_and_errors(self):
        async with self.m.astream("The", **ENDLESS) as s:
            await s.__anext__()
        self.assertEqual([p async for p in s], [])
        with self.assertRaises(tern.ContextError):
            await self.m.agenerate([1] * 5000)


if __name__ == "__main__":
    unittest.main()
