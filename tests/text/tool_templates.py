"""Chat templates that write tool calls in the ways that families do, reduced to what matters for it."""

from __future__ import annotations

HERMES = """
{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """
{%- if tools %}Answer with {"name": function name, "parameters": arguments}: {{ tools | tojson }}{% endif %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('One tool call at a time!') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- if builtin_tools is defined %}{{ '<|python_tag|>' + call.name + '.call(' }}
{%- else %}{{ '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}{% endif %}
{{- '<|eot_id|>' }}
{%- else %}{{ '<|head|>' + message.role + '<|/head|>\\n\\n' + message.content + '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"""

MISTRAL_LIST = """
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}{{ '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('Tool call IDs have 9 characters!') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last else ']</s>' }}
{%- endfor %}
{%- else %}{{ message.content + '</s>' }}{% endif %}
{%- endfor %}"""

MISTRAL_NAMED = """
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}
{%- else %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' + (call.function.arguments | tojson) }}
{%- endfor %}{{ '</s>' }}{% endif %}
{%- endfor %}"""

GEMMA = """
{%- if tools %}<start_function_declaration>{{ tools | tojson }}<end_function_declaration>{% endif %}
{%- for message in messages %}<start_of_turn>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<start_function_call>call:' + call.function.name + '{' }}
{%- for key, value in call.function.arguments.items() %}
{{- key + ':' + ('<escape>' + value + '<escape>' if value is string else value | string) }}{{ ',' if not loop.last }}
{%- endfor %}
{{- '}<end_function_call>' }}
{%- endfor %}
{{- '<start_function_response>' if message.tool_calls else '<end_of_turn>' }}
{% endfor %}"""

SILENT = "{% for message in messages %}{{ message.role + ': ' + message.content }}{% if tools %}{% endif %}{% endfor %}"
WITHOUT_TOOLS = "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}"
