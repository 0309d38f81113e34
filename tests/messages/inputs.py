"""Prompts, and the settings of what is generated from them."""

from __future__ import annotations

import glassformer
from glassformer.ground.errors import ContextExceeded, InputError, InputTypeError, TemplateError
from tests.jobs.models import chat_model
from tests.messages.calls import Entry, decoder, pair, path, run
from tests.see.models import TEXT, both

MESSAGES: dict[str, list[Entry]] = {
    "prompts": [
        (InputError, lambda: decoder().chat(""),
         "the prompt is empty. Say something."),
        (InputTypeError, lambda: decoder().chat(5),
         "a prompt is text, a list of messages or token ids, not int."),
        (InputError, lambda: decoder().chat([10**8]),
         "token id 100000000 is outside the vocabulary of 256."),
        (InputError, lambda: decoder().chat([1], system="x"),
         "a prompt of token ids has no place for a system message. Leave one of the two out."),
        (InputError, lambda: decoder().chat([1], template={"a": 1}),
         "a prompt of token ids has no place for variables of the chat template. Leave one of the two out."),
        (InputError, lambda: decoder().chat(TEXT, raw=True, template={"a": 1}),
         "a raw prompt has no place for variables of the chat template. Leave one of the two out."),
        (ContextExceeded, lambda: decoder().chat("a " * 300),
         "a prompt of at least 600 tokens does not fit into the model's context of 256. Shorten it."),
        (InputError, lambda: chat_model().chat([]),
         "the conversation is empty. Give it a message: [{'role': 'user', 'content': '…'}]."),
        (InputTypeError, lambda: chat_model().chat(["Hi"]),
         "message 0 is 'Hi'; a message is {'role': 'user', 'content': '…'}."),
        (TemplateError, lambda: chat_model().chat("Hi", template={"tokenize": True}),
         "tokenize is no variable of a chat template, but an argument of its own. Pass it as that."),
        (ContextExceeded, lambda: both("bart").model.read("a " * 300, "b"),
         "602 tokens do not fit into the model's context of 64. Shorten the text."),
        (InputTypeError, lambda: decoder().chat(TEXT, raw="no"),
         "raw is 'no'; it must be True or False."),
        (InputTypeError, lambda: decoder().chat(TEXT, template="a"),
         "template is 'a'; it must be a dictionary of the chat template's variables."),
        (InputTypeError, lambda: decoder().generate("Hi"),
         "generate(): run is 'Hi'; it must be a run of start(…), and a text goes to chat(…)."),
        (TemplateError, lambda: decoder().render(TEXT, system="x"),
         "… has no chat template, so it takes plain text only."),
        (InputTypeError, lambda: chat_model().render([{"role": "user", "content": "Hi"}], raw=True),
         "a raw prompt is text; messages need the chat template."),
        (InputError,
         lambda: chat_model().render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], system="x"),
         "the conversation has a system message already. Leave system out."),
        (InputError, lambda: decoder().start(run(), raw=True),
         "a run goes on as its tokens stand: raw, system and template are for a prompt. Leave them out."),
        (InputError, lambda: pair().start(pair().watch(TEXT, raw=True, max_new_tokens=1)),
         "… is an encoder-decoder: it reads one text and answers it, and cannot go on."),
        (InputError, lambda: decoder().read_ids([]),
         "the prompt has no tokens. Say something."),
        (InputError, lambda: glassformer.load(path("gpt2", "sequence")).chat(TEXT),
         "… is a model with a sequence head (gpt2): it reads text and writes none. Look at what it makes of a text: glass "
         "look."),
        (InputError, lambda: chat_model().render("Hi", raw=True, system="x"),
         "a raw prompt has no place for a system message. Leave one of the two out."),
    ],
    "batches": [
        (InputError, lambda: decoder().batch([]),
         "a batch has at least one text."),
        (InputError, lambda: decoder().batch(["a", ""]),
         "text 2 is empty. Give at least one character."),
    ],
}  # fmt: skip
