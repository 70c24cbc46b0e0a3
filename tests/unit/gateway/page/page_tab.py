# SPDX-License-Identifier: Apache-2.0
"""The gateway's page in a browser's tab, as a person uses it: by its keys, and by what is seen."""

import itertools
from pathlib import Path
from typing import Any

from browser_tab import BrowserTab

_USED = {"button", "checkbox", "combobox", "link", "spinbutton", "textbox", "DisclosureTriangle"}
ANSWER = ".turn:last-child .answer"
# Each text that is seen, with the contrast to what is behind it (WCAG 2.2, 1.4.3): 4.5 is the least for small text.
CONTRASTS = """(() => {
  const colour = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (found[3] === 1) return found;
    }
    throw new Error("nothing opaque is behind the page");
  };
  const ratio = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility({ visibilityProperty: true }) || element.disabled) continue;
    const said = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element);
    if (said.length) found.push([said[0].data.trim().slice(0, 40), ratio(colour(style.color), behind(element))]);
    if (element.placeholder && !element.value) {
      const shown = getComputedStyle(element, "::placeholder").color;
      found.push([element.placeholder.slice(0, 40), ratio(colour(shown), behind(element))]);
    }
  }
  return found;
})()"""


class PageTab(BrowserTab):
    """The page of a gateway.

    Args:
        gateway: its address, without a path.
    """

    def __init__(self, gateway: str, profile: Path, **fields: Any) -> None:
        super().__init__(f"{gateway}/", profile, **fields)

    def wait_for_view(self, name: str) -> None:
        """Wait until a view is shown: sign-in, chat, compare or live."""
        self.wait(f"!document.getElementById('view-{name}').hidden")

    def go_to(self, name: str) -> None:
        """Show another view by its link, with the keyboard."""
        self.run(f"""document.querySelector('nav a[href="#{name}"]').focus()""")
        self.press("Enter")
        self.wait_for_view(name)

    def sign_in(self, key: str) -> None:
        """Type a key and send it."""
        self.wait_for_view("sign-in")
        self.type(key)
        self.press("Enter")

    def send(self, text: str) -> None:
        """Type a message where the focus is and send it."""
        self.type(text)
        self.press("Enter")

    def option(self, name: str, value: object, *, within: str = "#chat-options") -> None:
        """Set an option."""
        self.run(f"document.querySelector('{within} [name={name}]').value = '{value}'")

    def wait_for_answer(self) -> str:
        """Wait until the last answer has ended, and return its text."""
        self.wait(f"document.querySelector('{ANSWER}')?.getAttribute('aria-busy') === 'false'")
        return str(self.run(f"document.querySelector('{ANSWER} > .text').textContent"))

    def figure(self, name: str, *, of: str = ANSWER) -> str:
        """Return a figure of an answer: ttft, rate, tokens, time or end."""
        return self.text(f"{of} .{name}")

    def failure(self) -> str:
        """Wait for the last answer's failure, and return what is said."""
        self.wait(f"document.querySelector('{ANSWER} .failure')?.textContent")
        return self.text(f"{ANSWER} .failure")

    def check_contrasts(self) -> None:
        """Check that every text that is seen can be read."""
        found = self.run(CONTRASTS)
        assert len(found) > 5
        assert [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5] == []

    def check_names(self) -> None:
        """Check that a screen reader has a name for all that can be used, and that headings have an order."""
        found = self.accessible()
        used = [(role, name) for role, name in found if role in _USED]
        assert len(used) >= 3
        assert [role for role, name in used if not name.strip()] == []
        levels = self.run(
            "[...document.querySelectorAll('h1, h2, h3')].filter((each) => each.checkVisibility())"
            ".map((each) => Number(each.tagName[1]))"
        )
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels

    def check_width(self) -> None:
        """Check that nothing makes the page scroll sideways."""
        seen, window = self.run("[document.documentElement.scrollWidth, innerWidth]")
        assert seen <= window, (seen, window)
