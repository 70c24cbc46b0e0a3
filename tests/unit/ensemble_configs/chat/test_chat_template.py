# SPDX-License-Identifier: Apache-2.0
"""Templates as checkpoints bring them: where they are found, what they may do, and what they may not."""

from pathlib import Path

import pytest

from ensemble_configs.chat.chat_template import load_chat_template
from trireme.base.errors import RequestError, SpecError


def rendered(folder: Path, *messages: dict[str, object]) -> str:
    template = load_chat_template(folder)
    assert template is not None
    return template.render(messages)


def test_a_file_of_the_template_s_own_goes_before_the_configs(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    assert load_chat_template(tmp_path / "missing") is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "config", "eos_token": {"content": "E"}}')
    assert rendered(tmp_path) == "config"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert rendered(tmp_path) == "json"
    (tmp_path / "chat_template.jinja").write_text("new{{ eos_token }}{{ messages | tojson }}")
    assert rendered(tmp_path, {"role": "ü"}) == 'newE[{"role": "ü"}]'
    assert rendered(tmp_path / "chat_template.jinja") == "newE[]"


def test_of_several_templates_the_default_one_counts(tmp_path: Path) -> None:
    templates = '[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]'
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {templates}}}')
    assert rendered(tmp_path) == "d"


def test_tags_beyond_jinja_s_own_are_known(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(
        "{% for one in messages %}{% if one.role == 'system' %}{% continue %}{% endif %}"
        "{% generation %}{{ one.content }}{% endgeneration %};{% endfor %}{{ strftime_now('%%') }}"
    )
    assert rendered(tmp_path, {"role": "system", "content": "s"}, {"role": "user", "content": "u"}) == "u;%"


@pytest.mark.parametrize(
    "text", ["{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "{{ 1 // 0 }}", "{{ a.b.c }}"]
)
def test_a_template_that_refuses_or_escapes_names_the_messages(tmp_path: Path, text: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(text)
    with pytest.raises(RequestError, match="messages: the model's chat template refuses them") as refused:
        rendered(tmp_path)
    assert refused.value.facts == {"field": "messages"}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("chat_template.jinja", b"{% if %}", "is not a template"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
        ("tokenizer_config.json", b"{", "cannot be read"),
        ("tokenizer_config.json", b"[]", "cannot be read: tokenizer_config.json holds list"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError, match=complaint):
        load_chat_template(tmp_path)
