"""The chat page in a real browser: headless Chromium, driven by Playwright, against a scripted model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_model import wait_until
from served import TOOLS_CHATML, Served

pytestmark = pytest.mark.slow

#: Case skills-ui-2.
MARKUP = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "[a](javascript:alert(1))",
    "<svg/onload=alert(1)>",
)
#: Folder for screenshots to look at; none are made without it.
SHOTS = os.environ.get("GGFW_TEST_SCREENSHOTS")

THOUGHTS = "<think>First I weigh it.</think>The answer is **four**."
LONG = "word " * 300
#: By what the conversation holds; the first that fits counts.
SCRIPTS = {
    "after the edit": "Edited reply.",
    "all markup": "\n\n".join(MARKUP)
    + "\n\n```html\n"
    + "\n".join(MARKUP)
    + "\n```\n\n"
    + "`"
    + MARKUP[0]
    + "`",
    "half markup": MARKUP[1][:12],
    "think": THOUGHTS,
    "write long": LONG,
    "list": "1. one\n2. two\n   - deep\n\n| a | b |\n|---|--:|\n| x | y |\n\n```python\nprint(1)  # note\n```",
    "": "Hello there.",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs network: playwright is not installed")
    path = os.environ.get("GGFW_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip(
            "needs network: there is no chromium; install Debian's package, or set GGFW_TEST_CHROMIUM"
        )
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    app = {"ui": True, "id": MARKUP[0]}  # a model called like this must be shown as text, too
    with Served(template=TOOLS_CHATML, scripts=SCRIPTS, n_ctx=4096, app=app) as server:
        yield server


class Page:
    """The page, and what went wrong in it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        self.outside: list[str] = []
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._noted)
        page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda r: None if r.url.startswith((url, "blob:")) else self.outside.append(r.url))
        page.goto(f"{url}/chat")
        page.wait_for_function("() => document.getElementById('model').options.length > 0")

    def _noted(self, message: Any) -> None:
        # That a response had an error status is noted by the browser itself; the page has to say it to the user.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.wrong.append(message.text)

    def say(self, text: str, wait: bool = True) -> None:
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")
        if wait:
            self.done()

    def done(self) -> None:
        self.page.wait_for_selector("#send:visible")
        self.page.wait_for_selector(".message[aria-busy=true]", state="detached")

    def texts(self, role: str = "assistant") -> list[str]:
        return [e.inner_text().strip() for e in self.page.query_selector_all(f".message.{role} .body")]

    def shot(self, name: str) -> None:
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Page]:
    served.fake.executor.delay = 0.0
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    made = Page(context.new_page(), served.live.url)
    yield made
    context.close()
    served.fake.executor.delay = 0.0
    assert not made.wrong, made.wrong
    assert not made.outside, f"the page asked somebody else: {made.outside}"


def test_chat_shows_the_answer_and_what_it_cost(page: Page) -> None:
    page.say("hi")
    assert page.texts("user") == ["hi"] and page.texts() == ["Hello there."]
    assert " tokens · " in page.page.inner_text(".message.assistant .figures")
    assert page.page.inner_text("#context-text").endswith("/ 4,096")
    assert page.page.inner_text("#model option").endswith(" · 4k context")
    assert page.page.get_attribute("#model", "title") == page.page.inner_text("#model option")
    page.shot("chat")


def test_enter_sends_and_shift_enter_makes_a_line(page: Page) -> None:
    page.page.fill("#input", "one")
    page.page.press("#input", "Shift+Enter")
    page.page.type("#input", "two")
    assert page.page.input_value("#input") == "one\ntwo" and page.texts("user") == []
    page.page.press("#input", "Enter")
    page.done()
    assert page.texts("user") == ["one\ntwo"]


@pytest.mark.parametrize("way", ["button", "escape"])
def test_stop_ends_the_answer_and_frees_the_slot(page: Page, served: Served, way: str) -> None:
    served.fake.executor.delay = 0.01
    page.say("write long", wait=False)
    page.page.wait_for_function(
        "() => document.querySelector('.message.assistant .body').innerText.length > 20"
    )
    assert "tokens/s" in page.page.inner_text(".message.assistant .figures")
    page.page.click("#stop") if way == "button" else page.page.keyboard.press("Escape")
    page.done()
    (text,) = page.texts()
    assert 20 < len(text) < len(LONG) - 100
    assert page.page.inner_text(".ended") == "Stopped."
    served.idle()


def test_edit_makes_a_branch_and_both_can_be_shown(page: Page) -> None:
    page.say("hi")
    page.page.hover(".message.user")
    page.page.click("[aria-label='Edit this message']")
    page.page.fill(".message.user textarea", "after the edit")
    page.shot("edit")
    page.page.press(".message.user textarea", "Enter")
    page.done()
    assert page.texts("user") == ["after the edit"] and page.texts() == ["Edited reply."]
    assert page.page.inner_text(".version") == "2 / 2"
    page.page.click("[aria-label='Earlier version']")
    assert page.texts("user") == ["hi"] and page.texts() == ["Hello there."]
    page.page.reload()
    assert page.texts("user") == ["hi"]
    page.page.click("[aria-label='Later version']")
    assert page.texts() == ["Edited reply."]


def test_escape_leaves_the_editor_and_arrow_up_enters_it(page: Page) -> None:
    page.say("hi")
    page.page.press("#input", "ArrowUp")
    assert page.page.input_value(".message.user textarea") == "hi"
    page.page.keyboard.press("Escape")
    assert page.texts("user") == ["hi"] and page.page.query_selector(".message.user textarea") is None


def test_regenerate_keeps_the_other_answer(page: Page, served: Served) -> None:
    page.say("hi")
    page.page.click("[aria-label='Answer again']")
    page.page.wait_for_selector("text=2 / 2")
    page.done()
    assert page.texts() == ["Hello there."]
    assert served.seen[-1].prompt == served.seen[-2].prompt


def test_a_reload_keeps_the_conversation(page: Page, served: Served) -> None:
    page.say("hi")
    page.say("hi again")
    page.page.reload()
    assert page.texts("user") == ["hi", "hi again"] and len(page.texts()) == 2
    assert page.page.inner_text(".entry[aria-current] .title") == "hi"
    page.say("more")
    assert served.prompt().count("Hello there.") == 2, "the earlier turns are sent"


def test_a_reload_in_the_middle_keeps_what_has_come(page: Page, served: Served) -> None:
    served.fake.executor.delay = 0.01
    page.say("write long", wait=False)
    page.page.wait_for_function(
        "() => document.querySelector('.message.assistant .body').innerText.length > 20"
    )
    page.page.reload()
    assert len(page.texts()[0]) > 15
    served.idle()


def test_reasoning_is_folded(page: Page) -> None:
    page.say("think")
    assert page.texts() == ["The answer is four."]
    assert page.page.inner_text("summary").startswith("Thought for")
    assert not page.page.is_visible(".thoughts")
    page.page.click("summary")
    assert page.page.inner_text(".thoughts") == "First I weigh it."
    page.shot("reasoning")


def test_markdown_becomes_elements(page: Page) -> None:
    page.say("list")
    for what in ("ol > li > ul > li", "table td.right", "pre code .hl-comment", "figcaption button"):
        assert page.page.query_selector(f".body {what}"), what
    page.shot("markdown")


def no_markup(page: Page) -> None:
    """No element that an answer asked for, and no link but to the web."""
    found = page.page.evaluate(
        """() => [...document.querySelectorAll('main *, aside *, dialog *, head *')].filter((e) =>
            ['IMG', 'IFRAME', 'OBJECT', 'EMBED'].includes(e.nodeName)
            || e.nodeName === 'SCRIPT' && !e.src
            || e.nodeName === 'svg' && !e.matches('.icon, #context-meter')
            || [...e.attributes].some((a) => a.name.startsWith('on'))
            || /javascript:/i.test(e.getAttribute('href') ?? '')
        ).map((e) => e.outerHTML)"""
    )
    assert found == []


def test_markup_is_shown_as_text(page: Page) -> None:
    page.say("all markup")
    for _ in range(2):
        (text,) = page.texts()
        for one in MARKUP:
            assert text.count(one) >= 2, f"{one} is not to be read in the text and in the code"
        assert MARKUP[0] in page.page.inner_text("#model")
        no_markup(page)
        page.page.reload()  # and once more from the browser's store
        page.page.wait_for_function("() => document.getElementById('model').options.length > 0")
    page.say(" ".join(MARKUP))
    assert page.texts("user")[-1] == " ".join(MARKUP)
    no_markup(page)
    page.shot("markup")


def stream(*deltas: dict[str, Any], reason: str = "stop") -> str:
    """A stream that the page could have got."""
    chunks = [{"model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def answer_with(page: Page, body: str, **more: Any) -> None:
    kind = {"content_type": "text/event-stream", **more}
    page.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, **kind))


def test_markup_in_halves_is_shown_as_text(page: Page) -> None:
    """At every cut between two chunks; each half is drawn."""
    drawn = page.page.evaluate(
        """async (texts) => {
            const { Growing } = await import('/ui/markdown.js');
            const bad = [];
            for (const text of texts) for (const wrap of [text, '```\\n' + text, '| ' + text + ' |\\n|---|',
                '> ' + text, '- ' + text, '**' + text + '**', '[' + text + '](https://example.org)']) {
                const element = document.createElement('div');
                document.body.append(element);
                const growing = new Growing(element);
                for (let n = 1; n <= wrap.length; n++) {
                    growing.show(wrap.slice(0, n));
                    const found = element.querySelector(
                        'img, script, svg:not(.icon), a:not([href^="http"]), [onerror], [onload]');
                    if (found) bad.push(wrap.slice(0, n));
                }
                element.remove();
            }
            return bad;
        }""",
        list(MARKUP),
    )
    assert drawn == []


def test_markup_as_the_name_of_a_tool_and_in_reasoning(page: Page) -> None:
    call = {
        "index": 0,
        "id": "c1",
        "function": {"name": MARKUP[0], "arguments": json.dumps({"a": MARKUP[3]})},
    }
    answer_with(page, stream({"reasoning_content": MARKUP[1]}, {"tool_calls": [call]}, reason="tool_calls"))
    page.say("hi")
    for _ in range(2):
        assert MARKUP[0] in page.page.inner_text(".call-name") and MARKUP[3] in page.page.inner_text(
            ".call pre"
        )
        assert page.page.text_content(".thoughts") == MARKUP[1]
        no_markup(page)
        page.page.reload()
    page.shot("call")


def test_the_result_of_a_tool_goes_back(page: Page) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": "{}"}}
    sent: list[Any] = []

    def answer(route: Any) -> None:
        sent.append(json.loads(route.request.post_data))
        body = (
            stream({"tool_calls": [call]}, reason="tool_calls")
            if len(sent) == 1
            else stream({"content": "Sunny."})
        )
        route.fulfill(body=body, content_type="text/event-stream")

    page.page.route("**/v1/chat/completions", answer)
    page.say("hi")
    page.page.fill(".call textarea", "20 degrees")
    page.page.click("text=Send the result")
    page.page.wait_for_selector("text=Sunny.")
    page.done()
    _, called, result = sent[1]["messages"]
    assert called["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    ]
    assert result == {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "20 degrees"}


def test_progress_of_the_prompt_is_shown(page: Page) -> None:
    """A stream that stays open after a progress chunk."""
    page.page.evaluate(
        """() => {
            const real = window.fetch;
            window.fetch = (path, options) => path !== 'v1/chat/completions' ? real(path, options)
                : Promise.resolve(new Response(new ReadableStream({ start(controller) {
                    options.signal.addEventListener('abort', () => controller.error(options.signal.reason));
                    const progress = { total: 2000, cache: 200, processed: 650, time_ms: 4500 };
                    const chunk = { choices: [{ index: 0, delta: {} }], prompt_progress: progress };
                    const text = `: still here\\n\\ndata: ${JSON.stringify(chunk)}\\n\\n`;
                    controller.enqueue(new TextEncoder().encode(text));
                } }), { status: 200 }));
        }"""
    )
    page.say("hi", wait=False)
    page.page.wait_for_selector("text=650 of 2,000 tokens")
    assert page.page.inner_text(".progress").endswith("100 tokens/s · about 14 s left")
    assert page.page.evaluate("document.querySelector('.progress progress').value") == pytest.approx(0.325)
    page.page.wait_for_timeout(400)  # the bar moves smoothly
    page.shot("progress")
    page.page.keyboard.press("Escape")
    page.done()
    assert page.texts() == []


def test_an_error_is_said_and_the_question_can_be_asked_again(page: Page) -> None:
    answer_with(
        page,
        json.dumps({"error": {"message": "the queue is full"}}),
        status=429,
        content_type="application/json",
    )
    page.say("hi")
    assert page.page.inner_text(".error") == "The queue is full"
    page.shot("error")
    page.page.unroute("**/v1/chat/completions")
    page.page.click("[aria-label='Answer again']")
    page.page.wait_for_selector("text=Hello there.")
    page.done()


def test_a_stream_that_breaks_off_is_no_complete_answer(page: Page) -> None:
    answer_with(page, stream({"content": "Half"}).split("data: [DONE]")[0])
    page.say("hi")
    assert page.texts() == ["Half"] and "ended before" in page.page.inner_text(".error")


def test_settings_go_into_the_request(page: Page, served: Served) -> None:
    page.page.click("#open-settings")
    page.page.fill("[name=system]", "Be brief.")
    page.page.fill("[name=temperature]", "0.25")
    page.page.fill("[name=max_tokens]", "5")
    page.page.fill("[name=seed]", "7")
    page.shot("settings")
    page.page.press("[name=seed]", "Enter")
    page.page.reload()
    page.say("hi")
    assert page.texts() == ["Hello"]
    assert "cut off" in page.page.inner_text(".ended")
    assert "system\nBe brief." in served.prompt()
    request = served.seen[-1]
    assert (request.params.temperature, request.params.seed, request.max_tokens) == (0.25, 7, 5)


def test_settings_for_one_conversation_do_not_hold_for_others(page: Page, served: Served) -> None:
    page.say("hi")
    page.page.click("#open-settings")
    page.page.fill("[name=system]", "Only here.")
    page.page.check("[name=own]")
    page.page.click("text=Save")
    page.say("hi")
    assert "Only here." in served.prompt()
    page.page.click("#new")
    page.say("hi")
    assert "Only here." not in served.prompt()


def test_files_become_part_of_the_message(page: Page, served: Served) -> None:
    page.page.set_input_files(
        "#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"line with ``` in it\n"}
    )
    page.page.wait_for_selector("#files li")
    page.say("hi")
    assert "a.txt:\n````\nline with ``` in it\n````\n\nhi<|im_end|>" in served.prompt()
    page.page.set_input_files("#file", {"name": "b.bin", "mimeType": "x/y", "buffer": b"\0\1\2"})
    page.page.wait_for_selector("text=b.bin is no text file.")


def test_conversations_are_found_named_deleted_and_brought_back(page: Page) -> None:
    page.say("about apples")
    page.page.click("#new")
    page.say("about pears")
    page.page.fill("#title", "Fruit")
    page.page.press("#title", "Enter")
    assert [e.inner_text() for e in page.page.query_selector_all(".entry .title")] == [
        "Fruit",
        "about apples",
    ]
    page.page.fill("#search", "apples")
    assert [e.inner_text() for e in page.page.query_selector_all(".entry .title")] == ["about apples"]
    page.page.fill("#search", "")
    page.page.click("#more")
    page.shot("actions")
    page.page.click("#delete")
    assert page.texts("user") == ["about apples"]
    page.page.click("text=Undo")
    assert page.texts("user") == ["about pears"]
    page.page.reload()
    assert len(page.page.query_selector_all(".entry")) == 2


def test_export_and_import_give_the_same_conversation(
    page: Page, browser: Any, served: Served, tmp_path: Path
) -> None:
    page.say("hi")
    page.page.click("#more")
    with page.page.expect_download() as download:
        page.page.click("#export")
    path = tmp_path / "conversation.json"
    download.value.save_as(path)
    context = browser.new_context()
    other = Page(context.new_page(), served.live.url)
    other.page.set_input_files("#import-file", path)
    other.page.wait_for_selector(".message.assistant")
    assert other.texts("user") == ["hi"] and other.texts() == ["Hello there."]
    other.page.set_input_files(
        "#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": b"[1, 2]"}
    )
    other.page.wait_for_selector("text=cannot be imported")
    context.close()
    assert not other.wrong


def test_what_the_browser_kept_may_be_broken(page: Page) -> None:
    page.page.evaluate(
        """() => {
            localStorage.setItem('ggfw.conversation.a', 'no json');
            const evil = { role: 'evil', parent: null };
            localStorage.setItem('ggfw.conversation.b', JSON.stringify({ id: 'b', nodes: { 0: evil } }));
            localStorage.setItem('ggfw.conversation.c', '{"id": "c", "nodes": {"0": {"role": "user", "parent": "0"}}}');
            localStorage.setItem('ggfw.settings', '[1]');
        }"""
    )
    page.page.reload()
    page.say("hi")
    assert page.texts() == ["Hello there."]


def test_dark_and_light(page: Page) -> None:
    def colour() -> list[int]:
        text = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return [int(n) for n in text.removeprefix("rgb(").removesuffix(")").split(",")]

    page.say("list")
    assert min(colour()) > 200
    page.page.click("#theme")
    assert max(colour()) < 60
    page.page.mouse.move(600, 400)
    page.shot("dark")
    page.page.reload()
    assert max(colour()) < 60, "the choice is kept"
    page.page.click("#theme")
    assert min(colour()) > 200
    page.page.evaluate("localStorage.removeItem('ggfw.settings')")
    page.page.emulate_media(color_scheme="dark")
    page.page.reload()
    assert max(colour()) < 60, "without a choice it is as the system has it"


@pytest.mark.parametrize("width", [320, 390])
def test_phone_width(page: Page, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 780})
    page.say("list")
    assert page.page.evaluate("document.documentElement.scrollWidth") == width
    for id in ("input", "send", "menu", "model", "open-settings"):
        box = page.page.locator(f"#{id}").bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= width, id
    assert not page.page.is_visible("#conversations")
    page.shot(f"phone-{width}")
    page.page.click("#menu")
    assert (
        page.page.is_visible("#conversations") and page.page.get_attribute("#menu", "aria-expanded") == "true"
    )
    page.page.wait_for_timeout(300)
    page.shot(f"phone-{width}-drawer")
    page.page.keyboard.press("Escape")
    assert page.page.get_attribute("#menu", "aria-expanded") == "false"


def test_everything_has_a_name_for_screen_readers(page: Page) -> None:
    page.say("list")
    page.page.click("#open-settings")
    nameless = page.page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, [role]')].filter((e) =>
            !e.disabled && !(e.labels?.length) && !e.ariaLabel && !e.textContent.trim()
            && !['status', 'alert'].includes(e.role)
        ).map((e) => e.outerHTML)"""
    )
    assert nameless == []


def test_several_conversations_answer_at_once(page: Page, served: Served) -> None:
    served.fake.executor.delay = 0.003
    page.say("write long", wait=False)
    page.page.wait_for_selector(".dot")
    page.page.click("#new")
    page.say("hi")
    assert page.texts() == ["Hello there."]
    page.page.click("text=write long")
    page.done()
    assert page.texts() == [LONG.strip()]


def test_a_key_is_asked_for_and_kept(browser: Any) -> None:
    with Served(script="Hello there.", app={"ui": True, "api_keys": "secret"}) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.live.url + "/chat")
        page.wait_for_selector("#settings[open]", timeout=10_000)
        page.fill("[name=key]", "secret")
        page.click("text=Save")
        page.wait_for_function("() => document.getElementById('model').options.length > 0")
        page.reload()
        page.wait_for_function("() => document.getElementById('model').options.length > 0")
        assert not page.is_visible("#settings")
        context.close()


def test_skills_are_listed_and_switched(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "poet.md").write_text("---\nname: poet\ndescription: Writes verse\n---\nRhyme.\n")
    app = {"ui": True, "skills": tmp_path}
    with Served(script="Hello there.", template=TOOLS_CHATML, n_ctx=4096, app=app) as server:
        context = browser.new_context()
        page = Page(context.new_page(), server.live.url)
        page.say("hi")
        assert "load_skill" in server.prompt()
        page.page.click("#open-settings")
        assert page.page.inner_text("#skill-list") == "poet: Writes verse"
        page.page.select_option("[name=skills]", "off")
        page.page.click("text=Save")
        page.say("hi")
        assert "load_skill" not in server.prompt()
        context.close()
        assert not page.wrong


def test_hostile_text_is_rendered_in_little_time(page: Page) -> None:
    took = page.page.evaluate(
        """async () => {
            const { render } = await import('/ui/markdown.js');
            const out = {};
            for (const unit of ['*a ', '**', '_a_', '[', '![', '[a](', '`', '`a``', '<http://a', 'xhttp://',
                '(http://a)', '> ', '- ', '1. a\\n  ', '|a', '~~~\\n', '~~a', '\\\\', '#', '|-|\\n', '((', '[a][a]',
                '"', '\\n\\n- a']) {
                out[unit] = Infinity;
                for (let n = 0; n < 3 && out[unit] > 500; n++) { // others may have the processor meanwhile
                    const begun = performance.now();
                    render(unit.repeat(20000 / unit.length));
                    out[unit] = Math.min(out[unit], performance.now() - begun);
                }
            }
            return out;
        }"""
    )
    assert max(took.values()) < 1500, took


def test_an_answer_may_have_more_parts_than_a_call_may_have_arguments(page: Page) -> None:
    n = 150_000
    shown = page.page.evaluate(
        """async (texts) => {
            const { Growing } = await import('/ui/markdown.js');
            return texts.map((text) => {
                const element = document.createElement('div');
                new Growing(element).show(text);
                return element.querySelectorAll('p, li, p code').length;
            });
        }""",
        ["a\n\n" * n, "- a\n" * n, "`a` " * n],
    )
    assert min(shown) >= n


def test_an_abandoned_page_leaves_no_request_running(page: Page, served: Served) -> None:
    served.fake.executor.delay = 0.01
    page.say("write long", wait=False)
    page.page.wait_for_selector(".message.assistant .body p")
    page.page.goto("about:blank")
    wait_until(lambda: not served.model.engine.scheduler, 5)
    page.outside.clear()
