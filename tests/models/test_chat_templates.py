"""Chat templates are rendered as transformers renders them, within bounds of memory and time."""

import os
import resource
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from spag.core.errors import ModelError
from spag.models import templates
from spag.models.loading import load_tokenizer
from spag.models.tokens import chat_text

MESSAGES = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": " Hi, <b>you</b> "},
    {"role": "assistant", "content": "<think>\na\n</think>\n\nHo"},
    {"role": "user", "content": "Ünï 漢字"},
]
QWEN = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.last or (not loop.last and loop.index0 > ns.last_query_index and reasoning_content) %}
            {%- set thought = reasoning_content.strip('\\n') %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
OTHERS = (
    "{% for m in messages %}{% generation %}[{{ m.role|upper }}]{{ m['content'] | trim }}{{ eos_token }}"
    "{% endgeneration %}{% if loop.last %} {{ loop.length }}{% endif %}{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ messages | map(attribute='role') | join(', ') }}{{ 'a' ~ 1 ~ none }}",
    "{% macro m(x) %}({{ x }}){% endmacro %}{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}"
    "{{ m(i * 2) + '-' * 3 + '%s' % i + '{:>4}'.format(i) }}{% endfor %}{% set x %}a{{ bos_token }}{% endset %}{{ x }}"
    "{{ 'abc'.replace('b', 'd').center(9) | indent(4) }}{{ ', '.join(['a', 'b']) }}{{ 'x' | center(5) }}",
    "{{ '**%s** 12345' % 'x' + '** {{0}} {} 12345'.format(1234567890) + '%s' % 10**9 }}"
    "{{ [1, [2, {'a': 3}]] | tojson(indent=1) }}{{ messages | map(attribute='role') | list | batch(2) | list }}"
    "{% set a, b = [1], {'c': (4, 5)} %}{{ a == [1] and b.c in [(4, 5)] }}{{ 2.345 | round(1) }}",
)


def doubling(what: str) -> str:
    start = "{% set n = namespace(x='aa') %}{% for a in range(60) %}"
    return f"{start}{{% set n.x = {what} %}}{{% endfor %}}"


ENDLESS = {
    "a product": "{{ 'x' * 10**10 }}",
    "a long text": "{{ 'x' * 10**8 }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
    "doubling": doubling("n.x + n.x"),
    "a list of lists, written": doubling("[n.x, n.x]") + "{{ n.x }}",
    "a width that is given": "{{ '{:{}}'.format(1, 10**10) }}",
    "a list without end": "{% set n = namespace(x=[]) %}{% for a in range(99999) %}{% set n.x = [n.x] %}{% endfor %}"
    "{{ n.x }}",
}


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(model_folder))


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("source", [QWEN, *OTHERS])
def test_texts_are_those_of_transformers(tokenizer: PreTrainedTokenizerBase, source: str, thinking: bool) -> None:
    tokenizer.chat_template = source
    for follows in (False, True):
        theirs = tokenizer.apply_chat_template(
            MESSAGES, tokenize=False, add_generation_prompt=follows, enable_thinking=thinking
        )
        assert chat_text(tokenizer, MESSAGES, reply_follows=follows, thinking=thinking) == theirs


@pytest.mark.slow
@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_template_without_end_is_refused_in_one_line(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    tokenizer.chat_template = source
    templates._child.close()  # its times would count
    began, peak = process_times(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match=r"^.*: its chat template fails \(.*\); fix it, or use") as caught:
        chat_text(tokenizer, MESSAGES, reply_follows=True)
    assert "\n" not in str(caught.value)
    assert process_times() - began < templates.SECONDS + 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 2**10 * 100
    tokenizer.chat_template = "{{ messages[1].content }}"
    assert chat_text(tokenizer, MESSAGES, reply_follows=True) == " Hi, <b>you</b> "


def process_times() -> float:
    """CPU seconds of this process and of those of its children that have ended."""
    return sum(os.times()[:4])


def test_an_interrupted_question_gets_no_other_s_answer(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert chat_text(tokenizer, [{"role": "user", "content": "one"}], reply_follows=False) == "one"
    process = templates._child._process
    assert process and process.stdout
    monkeypatch.setattr(process.stdout, "readline", interrupt)
    with pytest.raises(KeyboardInterrupt):
        chat_text(tokenizer, [{"role": "user", "content": "two"}], reply_follows=False)
    assert chat_text(tokenizer, [{"role": "user", "content": "three"}], reply_follows=False) == "three"
    process.communicate()


def interrupt() -> str:
    raise KeyboardInterrupt


def test_a_long_conversation_is_not_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = QWEN
    messages = [{"role": "user", "content": "x" * 1000}] * 1000
    assert len(chat_text(tokenizer, messages, reply_follows=True)) > 1_000_000


def test_a_prompt_does_not_depend_on_the_day(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}"
    assert chat_text(tokenizer, MESSAGES, reply_follows=True) == "26 Jul 2024"
