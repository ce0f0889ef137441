"""Texts: equal to the command line's, whole, ended as asked."""

from __future__ import annotations

import json
import operator

import pytest

from clearway import LLM, PromptError, SamplingParams, StructuredOutputsParams

GREEDY = SamplingParams(temperature=0, max_tokens=24)
SKY = "Why is the sky blue?"


@pytest.mark.parametrize(("prompt", "seed", "temperature"), [("Once upon a time", 7, 0.8), ("The sea", 1, 1.2), ("1, 2, 3,", 0, 0)])
def test_a_text_is_the_command_lines(llm, command_line, prompt, seed, temperature):
    params = SamplingParams(seed=seed, temperature=temperature, max_tokens=32)
    [output] = llm.generate(prompt, params)
    flags = ["-p", prompt, "--raw", "-n", "32", "-s", str(seed), "--temp", str(temperature)]
    assert command_line(*flags) == output.outputs[0].text + "\n"


def test_an_answer_is_the_command_lines(llm, command_line):
    params = SamplingParams(seed=3, max_tokens=32)
    [output] = llm.chat([{"role": "user", "content": SKY}], params)
    assert command_line("-p", SKY, "-n", "32", "-s", "3") == output.outputs[0].text + "\n"


def test_prompts_together_are_the_prompts_alone(llm):
    prompts = ["Once upon a time", "The capital of France is", "A poem about rain:\n", [504, 260, 1]]
    params = GREEDY.replace(ignore_eos=True)
    together = llm.generate(prompts, params)
    assert [output.prompt for output in together] == [*prompts[:3], None]
    for prompt, output in zip(prompts, together):
        [alone] = llm.generate([prompt] if isinstance(prompt, list) else prompt, params)
        assert alone.outputs[0].text == output.outputs[0].text
        assert len(output.outputs[0].token_ids) == 24
        assert output.finished and output.outputs[0].finish_reason == "length"


def test_pieces_are_the_text(llm):
    params = SamplingParams(seed=5, max_tokens=40)
    stream = llm.stream([{"role": "user", "content": "Write about the café 🌊."}], params)
    pieces = list(stream)
    [whole] = llm.chat([{"role": "user", "content": "Write about the café 🌊."}], params)
    assert "".join(map(str, pieces)) == whole.outputs[0].text == stream.output.outputs[0].text
    assert sum((piece.token_ids for piece in pieces), []) == whole.outputs[0].token_ids
    assert pieces[-1].finish_reason == whole.outputs[0].finish_reason
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    assert llm.decode(whole.outputs[0].token_ids) == whole.outputs[0].text


def test_several_texts_have_seeds_of_their_own(llm):
    [output] = llm.generate("Once upon a time", SamplingParams(n=3, seed=10, max_tokens=16))
    texts = [one.text for one in output.outputs]
    assert len(set(texts)) == 3
    for index, text in enumerate(texts):
        [alone] = llm.generate("Once upon a time", SamplingParams(seed=10 + index, max_tokens=16))
        assert alone.outputs[0].text == text
    pieces = list(llm.stream("Once upon a time", SamplingParams(n=3, seed=10, max_tokens=16)))
    for index, text in enumerate(texts):
        assert "".join(piece.text for piece in pieces if piece.index == index) == text


def test_rows_of_a_batch_keep_their_places(small: LLM):
    # More texts than slots, each prompt with a row of its own.
    prompts = [f"prompt {index}" for index in range(12)]
    row = SamplingParams(ignore_eos=True)
    rows = [row.replace(n=1 + i % 3, seed=9 * i, max_tokens=5 + i, logprobs=2 if i % 4 == 0 else None) for i in range(12)]
    together = small.generate(prompts, rows)
    assert [output.prompt for output in together] == prompts
    for prompt, row, output in zip(prompts, rows, together):
        [alone] = small.generate(prompt, row)
        assert [one.token_ids for one in output.outputs] == [one.token_ids for one in alone.outputs]
        assert [one.index for one in output.outputs] == list(range(row.n))
        assert all(len(one.token_ids) == row.max_tokens for one in output.outputs)
        assert all((one.logprobs is None) == (row.logprobs is None) for one in output.outputs)
    with pytest.raises(ValueError, match="12 prompts, but 11 rows"):
        small.generate(prompts, rows[:11])


def test_stop_strings_and_tokens_end_a_text(llm):
    [free] = llm.generate("One, two, three,", GREEDY)
    text = free.outputs[0].text
    stop = text[5:9]
    [ended] = llm.generate("One, two, three,", GREEDY.replace(stop=stop))
    assert ended.outputs[0].text == text[: text.index(stop)]
    assert (ended.outputs[0].finish_reason, ended.outputs[0].stop_reason) == ("stop", stop)
    token = free.outputs[0].token_ids[4]
    [ended] = llm.generate("One, two, three,", GREEDY.replace(stop_token_ids=[token]))
    assert ended.outputs[0].token_ids == free.outputs[0].token_ids[: free.outputs[0].token_ids.index(token)]
    assert (ended.outputs[0].finish_reason, ended.outputs[0].stop_reason) == ("stop", token)


def test_vectors_are_of_length_one_and_of_their_text_alone(llm):
    texts = ["The cat sat on the mat.", "A kitten lay on the rug.", llm.encode("Taxes rose by three percent in 1913.")]
    together = llm.embed(texts)
    cat, kitten, taxes = (output.outputs.embedding for output in together)
    for output, text in zip(together, texts):
        vector = output.outputs.embedding
        assert len(vector) == output.outputs.hidden_size == 576
        assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-4)
        assert output.prompt_token_ids == (llm.encode(text) if isinstance(text, str) else text)
        [alone] = llm.embed(text)
        assert alone.outputs.embedding == vector
    assert sum(map(operator.mul, cat, kitten)) > sum(map(operator.mul, cat, taxes))
    assert llm.embed([]) == []
    with pytest.raises(PromptError):
        llm.embed("")
    with pytest.raises(PromptError) as refused:
        llm.embed([[5] * 600])
    assert (refused.value.tokens, refused.value.context) == (600, 512)


def test_log_probabilities_belong_to_their_tokens(llm):
    [output] = llm.generate("The capital of France is", GREEDY.replace(logprobs=3, max_tokens=6))
    one = output.outputs[0]
    assert len(one.logprobs) == len(one.token_ids) == 6
    for token, row in zip(one.token_ids, one.logprobs):
        assert len(row) == 3 and row[token].rank == 1, "the likeliest token was taken"
        assert all(found.logprob <= row[token].logprob <= 0 for found in row.values())
        assert row[token].decoded_token == llm.decode([token])
    assert one.cumulative_logprob == pytest.approx(sum(row[t].logprob for t, row in zip(one.token_ids, one.logprobs)))
    [output] = llm.generate("The capital of France is", GREEDY.replace(logprobs=0, max_tokens=2))
    assert [list(row) for row in output.outputs[0].logprobs] == [[token] for token in output.outputs[0].token_ids]
    [output] = llm.generate("The capital of France is", GREEDY.replace(max_tokens=2))
    assert output.outputs[0].logprobs is None


def test_answers_follow_a_schema(llm):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    params = SamplingParams(n=2, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema))
    [output] = llm.chat([{"role": "user", "content": "A person as JSON, please."}], params)
    for one in output.outputs:
        person = json.loads(one.text)
        assert set(person) == {"name", "age"} and isinstance(person["age"], int)
    digits = GREEDY.replace(structured_outputs=StructuredOutputsParams(regex="[0-9]{4}"))
    [output] = llm.generate("The year is ", digits)
    assert output.outputs[0].text.isdigit() and len(output.outputs[0].text) == 4


def test_biases_and_allowed_tokens_choose(llm):
    token = llm.encode(" yes", add_special_tokens=False)[0]
    [output] = llm.generate("Is it?", GREEDY.replace(logit_bias={token: 100.0}, max_tokens=3))
    assert output.outputs[0].token_ids == [token] * 3
    [output] = llm.generate("Is it?", GREEDY.replace(allowed_token_ids=[token], max_tokens=2))
    assert output.outputs[0].token_ids == [token] * 2


def test_a_prefix_is_read_once(llm):
    prompt = "A long prompt that is asked for twice. " * 12
    llm.generate(prompt, GREEDY.replace(max_tokens=1))
    [again] = llm.generate(prompt, GREEDY.replace(max_tokens=1))
    assert again.num_cached_tokens >= 64


def test_stats_count(small: LLM):
    before = small.stats()
    assert before["slots"] == 4 and before["generated_tokens"] == 0
    small.generate(["ab", "cd"], SamplingParams(max_tokens=5, ignore_eos=True))
    after = small.stats()
    assert after["generated_tokens"] == 10 and after["requests"] == 2
    assert after["first_token_seconds"]["count"] == 2 and after["first_token_seconds"]["mean"] > 0


def test_deterministic_texts_do_not_depend_on_their_neighbours(tiny_file):
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=4)
    options = {"device": "cpu", "threads": 2, "max_num_seqs": 6, "deterministic": True, "progress": False}
    prompts = [f"prompt {index} " * (1 + index % 3) for index in range(12)]
    with LLM(str(tiny_file), **options) as llm:
        together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        alone = [llm.generate(prompt, params)[0].outputs[0].token_ids for prompt in prompts]
    assert together == alone


def test_documentation_runs():
    import doctest

    import clearway.graphs
    import clearway.llm
    import clearway.sampling

    for module in (clearway, clearway.llm, clearway.sampling, clearway.graphs):
        failed, tried = doctest.testmod(module)
        assert tried > 0 and failed == 0, module.__name__
