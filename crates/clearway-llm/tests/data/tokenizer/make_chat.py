#!/usr/bin/env python3
"""Makes chat.json: templates written for the tests, conversations, and what the package `jinja2` makes of them with the
settings of Hugging Face `transformers`."""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

BOS, EOS = "<s>", "</s>"


class Generation(jinja2.ext.Extension):
    """transformers' `generation` block, as far as it shows in the output."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime(2024, 7, 26).strftime
    return env


def render(template, messages, options):
    context = {"messages": messages, "tools": None, "documents": None, "bos_token": BOS, "eos_token": EOS, **options}
    try:
        return {"text": environment().from_string(template).render(**context)}
    except Raised as error:
        return {"raised": str(error)}
    except Exception as error:  # noqa: BLE001
        return {"failed": type(error).__name__}


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


CONVERSATIONS = [
    say(("user", "Hi")),
    say(("system", "Be brief."), ("user", "What is 2 + 2?")),
    say(("system", " Ты — помощник.\n"), ("user", "  Привет, 山 😀! <b>\"x\" & 'y'</b>\n"), ("assistant", " Да\\n. "), ("user", "Ok?")),
    say(("user", "a"), ("assistant", "<think>\nhmm\n</think>\n\nanswer"), ("user", "b"), ("assistant", "c")),
    say(("assistant", "first"), ("user", "second")),
    [],
]

# Whole templates in the manner of the ones in use.
TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'"
    " + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "default system": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' +"
    " message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "white space control": """
{%- if messages and messages[0].role == 'system' -%}
    {%- set system = messages[0].content | trim -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{{ bos_token }}
{% for m in rest %}
    {% if m.role == 'user' %}
  U: {{ m.content }}
    {% elif m.role == 'assistant' %}
  A: {{ m.content }}{{ eos_token }}
    {%+ endif %}
    {#- a comment -#}
{% endfor %}
{{ system }}

""",
    "alternation": "{{ bos_token }}{% if messages and messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% else %}{% set loop_messages = messages %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate: ' ~ message.role ~ ' at ' ~ loop.index) }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    "namespace and reverse search": "{%- set ns = namespace(last=-1, thinking=false, parts=[]) -%}"
    "{%- for m in messages[::-1] -%}{%- set index = (messages | length - 1) - loop.index0 -%}"
    "{%- if ns.last < 0 and m.role == 'user' and m.content is string and not (m.content.startswith('<') and"
    " m.content.endswith('>')) -%}{%- set ns.last = index -%}{%- endif -%}{%- endfor -%}"
    "{%- for m in messages -%}{%- set content = m.content -%}{%- if '</think>' in content -%}"
    "{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}{%- if loop.index0 > ns.last -%}"
    "[{{ thought }}]{%- endif -%}{%- endif -%}{%- set ns.parts = ns.parts + [m.role ~ ':' ~ content] -%}{%- endfor -%}"
    "{{ ns.last }}|{{ ns.parts | join('|') }}|{{ ns.parts | length }}",
    "macro": "{%- macro turn(role, content='', close=true) -%}<{{ role }}>{{ content | trim }}{% if close %}</{{ role }}>"
    "{% endif %}{%- endmacro -%}{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}"
    "{% if add_generation_prompt %}{{ turn('assistant', close=false) }}{% endif %}",
    "call and filter blocks": "{% macro box(title) %}[{{ title }}:{{ caller() }}]{% endmacro %}{% for m in messages %}"
    "{% call box(m.role) %}{% filter upper | trim %} {{ m.content }} {% endfilter %}{% endcall %}{% endfor %}"
    "{% set x %}captured {{ messages | length }}{% endset %}{{ x }}",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ loop.index }}/"
    "{{ loop.length }} {{ m.role }}{{ ', ' if not loop.last else '.' }}{% if m.role == 'assistant' %}{% break %}{% endif %}"
    "{% else %}nobody{% endfor %}",
    "loop neighbours": "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ m.role }}>"
    "{{ loop.nextitem.role if loop.nextitem is defined else '-' }};{{ loop.first }}{{ loop.revindex }}{{ loop.depth }} "
    "{% endfor %}",
    "json": "{% for m in messages %}{{ m | tojson }}\n{{ m.content | tojson(indent=2) }}{% endfor %}"
    "{{ {'b': [1, 2.5, none, true, {'x': 'é'}], 'a': {}, 'c': []} | tojson }}{{ {'b': 1, 'a': [1, {}]} |"
    " tojson(indent=4, sort_keys=true) }}{{ 'é😀' | tojson(ensure_ascii=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}",
    "generation tags": "{% for m in messages %}{% if m.role == 'assistant' %}{%- generation -%} {{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}",
    "dates": "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y|%A %a %B %Y-%m-%d %y %H:%M:%S 100%%') }}{% endif %}",
    "options": "{{ add_generation_prompt }}{% if enable_thinking is defined and enable_thinking is false %}<think></think>"
    "{% endif %}{{ tools is none }}{{ tools is defined }}{{ documents }}{{ undefined_name }}{% if not custom %}x{% endif %}",
    "refuses": "{% if not messages %}{{ raise_exception('No messages!') }}{% endif %}{{ messages[0].content }}",
    "with and unpack": "{% with a = 1, b = 'x' %}{{ a }}{{ b }}{% endwith %}{% for k, v in {'p': 1, 'q': 2}.items() %}{{ k }}={{ v }};"
    "{% endfor %}{% set a, b = 'l', 'r' %}{{ a }}{{ b }}{% for m in messages if m.role != 'system' %}{{ loop.index }}{% endfor %}",
    "selecting": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ (messages | map(attribute='role') |"
    " join(',')) }}{{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='content') | list }}"
    "{{ messages | map(attribute='role') | unique | sort | join('+') }}{{ (messages | last).role if messages }}",
    "fails": "{{ messages[0].content }}{{ messages[0].nothing.deeper }}",
    "wrong types": "{{ 'a' + 1 }}",
    "phi 3": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' +"
    " message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}"
    "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    "phi 4": "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content']"
    " + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"
    "{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    "granite": """{%- if messages and messages[0]['role'] == 'system' %}
  {%- set system_message = messages[0]['content'] %}
  {%- set loop_messages = messages[1:] %}
{%- else %}
  {%- set system_message = 'Today is ' + strftime_now('%B %d, %Y') + '.' %}
  {%- if tools and documents %}
    {%- set system_message = system_message + ' Tools and documents.' %}
  {%- elif tools %}
    {%- set system_message = system_message + ' Tools.' %}
  {%- endif %}
  {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\n' }}
{%- if tools %}
  {{- '<|start_of_role|>available_tools<|end_of_role|>' }}
  {{- tools | tojson(indent=4) }}
  {{- '<|end_of_text|>\n' }}
{%- endif %}
{%- for message in loop_messages %}
  {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\n' }}
  {%- if loop.last and add_generation_prompt %}
    {{- '<|start_of_role|>assistant' }}
    {%- if enable_thinking %}{{- ' ' + {'thinking': true} | tojson }}{%- endif %}
    {{- '<|end_of_role|>' }}
  {%- endif %}
{%- endfor %}""",
    "olmo 2": "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] +"
    " '\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}{% elif message['role'] == 'assistant' %}"
    "{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}{% else %}{{ '<|assistant|>\\n'  +"
    " message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}"
    "{% endif %}{% endfor %}",
    "glm 4": """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools{% for tool in tools %}{%- set function = tool.function if tool.get("function") else tool %}

## {{ function.name }}

{{ function | tojson(indent=4, ensure_ascii=False) }}{%- endfor %}
{%- endif -%}
{%- for msg in messages %}
    {%- if msg.role == 'system' %}
<|system|>
{{ msg.content }}
    {%- endif %}
{%- endfor %}
{%- for message in messages if message.role != 'system' %}
    {%- set role = message['role'] %}
    {%- set content = message['content'] %}
    {%- set visible = content.split('</think>')[-1].strip() %}
    {%- set meta = message.get("metadata", "") %}
    {%- if role == 'user' %}
<|user|>
{{ visible }}
    {%- elif role == 'assistant' and not meta %}
<|assistant|>
{{ visible }}
    {%- elif role == 'assistant' and meta %}
<|assistant|>{{ meta }}
{{ visible }}
    {%- elif role == 'observation' %}
<|observation|>
{{ visible }}
    {%- endif %}
{%- endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}""",
    "recursive loop": "{% for x in [[1, [2]], [3]] recursive %}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){% endif %}{% endfor %}",
}

# One expression each; {} is put around it.
EXPRESSIONS = """
1 + 2
1 + 2.0
7 // 2
7 % 3
-7 // 2
7 / 2
2 ** 10
3 * 'ab'
'ab' * 2
[1, 2] * 2
'ab' * -1
[] * 9223372036854775807
'' * 9223372036854775807
8 is divisibleby 0
[1] + [2, 3]
(1, 2) + (3,)
true + 1
1 - true
'a' ~ 1 ~ none ~ true ~ 2.5
none
true and 'x' or 'y'
not none
1 < 2 < 3
1 == 1.0
'a' in 'cat'
'x' not in ['a', 'b']
1 if false
1 if false else 2
'abc'[0]
'abc'[-1]
'abcdef'[1:4]
'abcdef'[::-1]
[1, 2, 3, 4][::2]
[1, 2, 3][-2:]
{'a': 1}['a']
{'a': 1}.a
{'a': 1}.get('b', 'z')
{'a': 1}.get('b')
{'a': 1, 'b': 2}.keys() | list
{'a': 1, 'b': 2}.values() | list
{'b': 1, 'a': 2} | dictsort
{'b': 1, 'a': 2} | items | list
[1, 'a', none, true, 2.5, {'k': ['v']}]
{'k': 'it\\'s', 'q': "\\""}
('a', 1)
' x '.strip()
'xxabxx'.strip('x')
'\\n\\nab\\n'.lstrip('\\n')
'ab\\n\\n'.rstrip()
'a,b,,c'.split(',')
' a  b '.split()
'a,b,c'.split(',', 1)
'a.b.c'.rsplit('.', 1)
'Hello'.upper() + 'Hello'.lower()
'hello world'.title()
'hello World'.capitalize()
'abcabc'.replace('b', 'X')
'abcabc'.replace('b', 'X', 1)
'abc'.replace('', '-')
'abc'.find('c')
'abc'.find('z')
'abab'.count('ab')
'abc'.startswith('ab')
'abc'.endswith(('x', 'c'))
'abc'.removeprefix('a').removesuffix('c')
'-'.join(['a', 'b'])
'12'.isdigit()
'ab'.isalpha()
'a\\nb'.splitlines()
' x ' | trim
'abc' | upper | lower | capitalize
'abc' | length
'山😀' | length
[3, 1, 2] | sort
[3, 1, 2] | sort(reverse=true) | first
[1, 2, 2] | unique | list
[3, 1] | max
[3, 1] | min
'abc' | reverse
[1, 2] | reverse | list
'abc' | list
'abc' | first ~ ('abc' | last)
[1, 2] | join
[1, 2] | join(', ')
'a\\nb\\n\\nc' | indent(2)
'a\\nb' | indent(2, true)
'a' | default('b')
nothing | default('b')
'' | default('b', true)
nothing | d('c')
'3' | int + 1
'x' | int(7)
'2.5' | float
-3 | abs
2.567 | round(1)
'<a&b>' | e
'x' | string
1.0 | string
'abc' | replace('b', '')
'x' is string
1 is number
1.5 is float
1 is integer
true is boolean
none is none
'x' is sequence
'x' is iterable
[] is sequence
{} is mapping
{} is iterable
1 is iterable
3 is odd
4 is even
9 is divisibleby 3
nothing is defined
nothing is undefined
'abc' is lower
1 is eq 1
1 is in [1, 2]
range(3) | list
range(1, 10, 3) | list
range(3, 0, -1) | list
dict(a=1).a
namespace(a=1).a
'%'
'\\u00e9\\t'
"a" "b"
1_000
1e3
0.1 + 0.2
10 ** 20
9223372036854775807 + 1
'x' == "x"
[1, [2]] == [1, [2]]
{'a': 1} == {'a': 1}
'a' < 'b'
""".strip().splitlines()


def main():
    cases = []
    for name, template in TEMPLATES.items():
        for messages in CONVERSATIONS:
            for options in [{"add_generation_prompt": True}, {"add_generation_prompt": False, "enable_thinking": False}]:
                case = {"name": name, "template": template, "messages": messages, "options": options}
                cases.append(case | render(template, messages, options))
    for expression in EXPRESSIONS:
        template = "{{ " + expression + " }}"
        options = {"add_generation_prompt": True}
        cases.append({"name": "expression", "template": template, "messages": [], "options": options} | render(template, [], options))
    # Templates and conversations are stored once.
    templates = list(dict.fromkeys(case["template"] for case in cases))
    out = {"templates": templates, "conversations": CONVERSATIONS, "cases": []}
    for case in cases:
        case["template"] = templates.index(case["template"])
        case["messages"] = CONVERSATIONS.index(case["messages"])
        out["cases"].append(case)
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace(',{"name"', ',\n{"name"')
    pathlib.Path(__file__).with_name("chat.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
