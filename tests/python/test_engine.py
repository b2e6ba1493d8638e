"""Engine: many answers together, streams, cancellation, prefixes in memory and on disk."""

import asyncio
import threading
import time

import pytest
from conftest import GREEDY, SMALL
from serving import text_of


@pytest.fixture()
def engine(riffle, model):
    with riffle.Engine(model, **SMALL) as engine:
        yield engine


def test_answers_are_those_of_single_calls(model, engine):
    prompts = [f"The rain in city {i}" for i in range(12)]
    replies = [engine.generate(p, max_tokens=10, temperature=0.7, seed=3) for p in prompts]
    alone = [model.generate(p, max_tokens=10, temperature=0.7, seed=3) for p in prompts]
    assert [reply.text for reply in replies] == [answer.text for answer in alone]
    assert [reply.tokens_so_far for reply in replies] == [answer.tokens for answer in alone]
    assert {reply.finish for reply in replies} <= {"length", "stop"}
    chat = engine.chat("Hello", max_tokens=6, **GREEDY)
    assert chat.text == model.chat("Hello", max_tokens=6, **GREEDY).text
    assert chat.n_answer_tokens <= 6 and chat.n_prompt_tokens > 1 and chat.seed == 0


def test_options_are_those_of_generate(riffle, engine):
    with pytest.raises(TypeError, match="unknown option 'max_token'; did you mean 'max_tokens'"):
        engine.generate("a", max_token=3)
    one = engine.generate("Once", max_tokens=3, logprobs=True, top_logprobs=2, seed=-1)
    assert one.text is not None and [len(top) for _, top in one.logprobs] == [2, 2, 2]
    assert engine.generate("Once", max_tokens=3, seed=one.seed).text == one.text
    assert engine.generate("", max_tokens=9, regex="[ab]{4}").text in (
        {a + b + c + d for a in "ab" for b in "ab" for c in "ab" for d in "ab"}
    )
    with pytest.raises(riffle.ContextFull, match="5002 tokens, but the context holds 2048"):
        engine.generate("x " * 5000).text
    with pytest.raises(riffle.BadArgument, match="prompts: found a str"):
        list(engine.generate_many("abc"))


def test_generate_many_keeps_the_order_and_reads_prompts_as_they_are_needed(engine):
    taken = []

    def prompts():
        for i in range(100):
            taken.append(i)
            yield f"Number {i}"

    many = engine.generate_many(prompts(), max_tokens=2)
    first = next(many)
    assert first.text is not None and len(taken) == 64
    assert [r.n_prompt_tokens for r in many] == [
        len(engine.model.tokenize(f"Number {i}")) for i in range(1, 100)
    ]
    left = engine.generate_many((f"Number {i}" for i in range(10)), max_tokens=500)
    kept = next(left)
    left.close()  # the others end
    kept.close()
    assert kept.text is not None and kept.finish in ("aborted", "stop")


def test_for_and_async_for_give_the_same_pieces(engine):
    async def collect():
        pieces = [piece async for piece in engine.generate("Once", max_tokens=12, **GREEDY)]
        several = await asyncio.gather(
            *(engine.generate(f"{i} days", max_tokens=6, **GREEDY).wait() for i in range(9))
        )
        return pieces, several

    pieces, several = asyncio.run(collect())
    assert pieces == list(engine.generate("Once", max_tokens=12, **GREEDY))
    assert len(pieces) > 3
    assert several == [engine.generate(f"{i} days", max_tokens=6, **GREEDY).text for i in range(9)]


def test_a_closed_reply_ends_at_once_and_the_others_go_on(engine):
    long = engine.generate("Once upon", max_tokens=1500, ignore_eos=True)
    other = engine.generate("Twice upon", max_tokens=40, ignore_eos=True, **GREEDY)
    next(long)
    begun = time.monotonic()
    long.close()
    assert long.text.startswith("") and long.finish == "aborted"
    assert time.monotonic() - begun < 2 and len(long.tokens_so_far) < 1500
    assert len(other.text) > 40 and other.finish == "length"
    long.close()  # again: nothing happens
    # A prompt that is being read ends too, in the middle of a step.
    reading = engine.generate(text_of(900), max_tokens=3)
    reading.close()
    assert reading.text == "" and reading.finish == "aborted"


def test_a_consumer_that_is_cancelled_can_close_its_reply(engine):
    async def consume():
        async with engine.generate("Once upon", max_tokens=1500, ignore_eos=True) as reply:
            task = asyncio.ensure_future(reply.wait())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await reply.wait()
        return reply.finish

    assert asyncio.run(consume()) == "aborted"


def test_prompts_that_begin_alike_are_read_once(riffle, model):
    document = text_of(700)
    asks = [f"{document} Who fell? {i}" for i in range(3)]
    with riffle.Engine(model, prefix_cache=None, **SMALL) as engine:
        replies = [engine.generate(ask, max_tokens=3, **GREEDY) for ask in asks]
        texts = [reply.text for reply in replies]
        # Kept after it has ended, also while other prompts come and go.
        for i in range(6):
            engine.generate(text_of(100, f"Ben {i}"), max_tokens=2).text
        again = engine.generate(asks[0] + " Why?", max_tokens=3)
        assert again.text is not None and again.n_cached_tokens >= replies[0].n_prompt_tokens - 1
    assert replies[0].n_cached_tokens == 0
    assert min(reply.n_cached_tokens for reply in replies[1:]) > 500
    with riffle.Engine(model, keep_seqs=0, **SMALL) as engine:
        plain = [engine.generate(ask, max_tokens=3, **GREEDY) for ask in asks]
        assert [reply.text for reply in plain] == texts
        later = engine.generate(asks[0], max_tokens=3)
        assert later.text is not None and later.n_cached_tokens == 0


def test_a_conversation_is_read_once_however_many_turns_it_has(riffle, model):
    with riffle.Engine(model, **SMALL) as engine:
        text, read = text_of(150), 0
        for turn in range(4):
            text += f" Turn {turn}: " + text_of(40, f"turn {turn}")
            reply = engine.generate(text, max_tokens=4)
            assert reply.text is not None
            read += reply.n_prompt_tokens - reply.n_cached_tokens
        assert read < reply.n_prompt_tokens + 4 * 8


def test_a_prefix_cache_outlives_the_engine(riffle, model, tmp_path):
    ask = text_of(700) + " Who fell?"
    texts, cached = [], []
    for _ in range(2):
        with riffle.Engine(model, prefix_cache=tmp_path / "cache", **SMALL) as engine:
            reply = engine.generate(ask, max_tokens=4, **GREEDY)
            texts.append(reply.text)
            cached.append(reply.n_cached_tokens)
            # A reply may be complete just before the statistics are.
            expected, end = 2 - len(texts), time.monotonic() + 10
            while engine.stats()["prefix_cache_saved"] != expected and time.monotonic() < end:
                time.sleep(0.01)
            assert engine.stats()["prefix_cache_saved"] == expected
    assert texts[0] == texts[1] and cached[0] == 0 and cached[1] > 700
    assert len(list((tmp_path / "cache").glob("*.kv"))) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(riffle.FileError, match="prefix_cache: .*found a file, expected a folder"):
        riffle.Engine(model, prefix_cache=tmp_path / "file", **SMALL)


def test_an_engine_that_is_closed_ends_its_replies(riffle, model, model_path):
    engine = riffle.Engine(model, **SMALL)
    replies = [engine.generate("Once", max_tokens=1500, ignore_eos=True) for _ in range(12)]
    next(replies[0])
    engine.close()
    engine.close()
    assert all(reply.done for reply in replies) and replies[0].finish == "aborted"
    assert replies[11].text == ""
    with pytest.raises(riffle.BadArgument, match="closed"):
        engine.generate("Once")
    # The model closes its engines.
    with riffle.Model(model_path, **SMALL) as other:
        left = riffle.Engine(other, **SMALL).generate("Once", max_tokens=1500, ignore_eos=True)
    assert left.done


def test_threads_may_share_an_engine(engine):
    texts = {}

    def ask(i):
        texts[i] = engine.generate(f"{i} days", max_tokens=6, **GREEDY).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 16 and texts[3] == engine.generate("3 days", max_tokens=6, **GREEDY).text


def test_waiting_takes_no_time_of_the_processor(engine):
    engine.generate("Once", max_tokens=2).text
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.1
    stats = engine.stats()
    assert stats["n_decoding"] == 0 and stats["decode_tokens"] > 0
