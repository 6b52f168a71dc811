"""Renders conversations by a Jinja chat template: JSON lines on standard input, one JSON line back for each.

The first line names the template, what it may use, and the names of special tokens; the answer says how an answer ends.
Every further line is a conversation and what is asked of it:
  text       the whole conversation
  prompt     the same and the opening of an answer
  documents  the text to train on and where its answers are, in bytes of UTF-8
An answer begins where the text of the messages before it, with the opening of an answer, ends. Where a later turn makes
the template write an earlier answer otherwise, the conversation becomes several documents, in each of which the answers
stand as they are generated.
The environment is the one that transformers documents for chat templates: sandboxed, trim_blocks, lstrip_blocks, break and
continue, raise_exception, strftime_now, tojson without HTML escapes, and the generation block, which changes nothing here.
"""
import datetime
import json
import re
import resource
import signal
import sys
import time

sys.path[:] = [path for path in sys.path if path]  # no module of the working folder
MEMORY = 4 << 30  # a template that asks for more fails in words
SECONDS = 300  # the process that asks gives up before; this holds where it was killed
SIGN_SECONDS = 5  # between signs of life

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    jinja2 = None


class Problem(Exception):
    """Why a conversation cannot be taught from."""


def make_environment(day):
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("as_it_is"), [], [], body).set_lineno(line)

        def as_it_is(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: day.strftime(form)
    return environment


REASONING = ("reasoning_content", "thinking", "reasoning")  # names of the same, the first that is there holds


def as_transformers_gives(message, nulls):
    """apply_chat_template leaves out keys that are null and gives reasoning by each of the names that templates read."""
    made = {key: value for key, value in message.items() if nulls or value is not None}
    said = next((made[key] for key in REASONING if made.get(key) is not None), None)
    return made if said is None else {"thinking": said, **made, "reasoning_content": said}


def text_of(part):
    return part if isinstance(part, str) else part["text"]


def function_of(tool):
    """What has the name: of a tool or a call of one, the function where there is one."""
    return tool["function"] if isinstance(tool, dict) and isinstance(tool.get("function"), dict) else tool


def name_of(tool):
    """None where it has none."""
    function = function_of(tool)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def renamed(tool, names):
    """With names[its name], where it has one."""
    if name_of(tool) is None:
        return tool
    changed = {**function_of(tool), "name": names[name_of(tool)]}
    return changed if function_of(tool) is tool else {**tool, "function": changed}


def in_one_text(message):
    """The same with content in parts as one text."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    return {**message, "content": "".join(map(text_of, parts))}


PROBE = "fourscore"  # an answer, or the beginning of a name, that no template writes by itself


class Chat:
    def __init__(self, setting):
        day = datetime.datetime.fromisoformat(setting["date"])
        self.template = make_environment(day).from_string(setting["template"])
        self.given = {**setting["special"], **setting["arguments"]}
        self.names = setting["names"]
        self.guard = setting["guard"]
        self.find_name = self.name_finder()
        self.stop = self.find_stop()

    def name_finder(self):
        """Finds the first character of a name, wherever one begins."""
        rests = {}  # by the first two characters, so that few are tried where a name could begin
        for name in self.names:
            rests.setdefault(name[:2], []).append(re.escape(name[2:]))
        return re.compile("|".join(f"{re.escape(head[0])}(?={re.escape(head[1])}(?:{'|'.join(rest)}))"
                                   for head, rest in rests.items()) or "(?!)")

    def guarded(self, value, is_word=False):
        """`value` with the guard inside every name that is in its texts, so that names which users wrote are told from the
        template's. Plain words that a template looks for are left: keys, roles, types."""
        if isinstance(value, str):
            return value if is_word and value.isidentifier() else self.find_name.sub(rf"\g<0>{self.guard}", value)
        if isinstance(value, list):
            return [self.guarded(item) for item in value]
        if isinstance(value, dict):
            return {self.guarded(key, True): self.guarded(item, key in ("role", "type")) for key, item in value.items()}
        return value

    def render(self, messages, tools=None, opening=False):
        try:
            text = self.template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=opening,
                                        **self.given)
        except MemoryError:
            raise Problem(f"the template wants more than {MEMORY >> 30} GiB of memory") from None
        except Exception as error:  # whatever a template calls may raise anything
            raise Problem(f"the template says: {error}" if isinstance(error, jinja2.exceptions.TemplateError)
                          else f"the template fails: {type(error).__name__}: {error}") from None
        if json.dumps(self.guard)[1:-1] in text:
            raise Problem("the template escapes characters, so that names of special tokens cannot be told from text")
        for message in messages:
            if isinstance(parts := message.get("content"), list):
                if str(parts) in text:
                    raise Problem("the template writes content in parts as Python shows a list")
                if not all(text_of(part).strip() in text for part in parts):
                    raise Problem("the template leaves out content in parts")
        return text

    def check_tools(self, messages, tools, opening):
        """Whether the template writes tools and calls of them: with names that no other text has, their number falls when
        what has them is left out."""
        called = [name_of(call) for message in messages for call in message.get("tool_calls") or []]
        names = {name: PROBE + "".join(chr(ord("a") + i // 26 ** k % 26) for k in range(3))  # none begins another
                 for i, name in enumerate(dict.fromkeys([*map(name_of, tools or []), *called])) if name is not None}
        given = [renamed(tool, names) for tool in tools or []] or tools
        told = [{**message,
                 **({"name": names[name]} if isinstance(name := message.get("name"), str) and name in names else {}),
                 **({"tool_calls": [renamed(call, names) for call in message["tool_calls"]]} if message.get("tool_calls") else {})}
                for message in messages]
        whole = self.attempt(told, given, opening)
        text = self.render(messages, tools, opening) if whole is None else whole  # the template wants its own names

        def lacking(these, *without):
            rest = None if whole is None else self.attempt(*without, opening)
            words = [name if whole is None else names[name] for name in these if name is not None]
            return [word for word in words if text.count(word) <= (rest.count(word) if rest else 0)]

        if tools and len(lacking(map(name_of, tools), told, None)) == len(tools):
            raise Problem("the template does not write tools: leave out the key \"tools\" to train without the list")
        without = [{key: value for key, value in message.items() if key != "tool_calls"} for message in told]
        if lacking(called, without, given):
            raise Problem("the template does not write tool calls")

    def after_probe(self, more):
        """What the template writes after an answer that `more` messages follow."""
        text = self.render([{"role": "user", "content": "u"}, {"role": "assistant", "content": PROBE}] + more)
        if PROBE not in text:
            raise Problem("the template does not write what an assistant says")
        return text[text.rindex(PROBE) + len(PROBE):]

    def name_at(self, text):
        return max((name for name in self.names if text.startswith(name)), key=len, default="")

    def find_stop(self):
        """What ends an answer: the first special token after it with those that follow at once, whether or not more is
        said; where there is none, all that follows it but white space."""
        rest = self.after_probe([]).rstrip()
        found = [(rest.index(name), -len(name), name) for name in self.names if name in rest]
        if not found:
            return rest
        at, _, name = min(found)
        end = at + len(name)
        try:
            later = self.after_probe([{"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}])
        except Problem:
            return rest[:end]
        while later.startswith(rest[:end]) and (name := self.name_at(rest[end:])) and name == self.name_at(later[end:]):
            end += len(name)
        return rest[:end]

    def attempt(self, *what, **more):
        """render(), or nothing where the template does not take this."""
        try:
            return self.render(*what, **more)
        except Problem:
            return None

    def frame(self):
        """What the template writes around short messages of all kinds, as far as it takes them."""
        ask, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
        result = {"role": "tool", "name": "f", "tool_call_id": "abcdefghi", "content": "1"}
        tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
            "type": "object", "properties": {"x": {"type": "integer", "description": "x"}}, "required": ["x"]}}}]
        written = [self.attempt([ask, answer]), self.attempt([{"role": "system", "content": "s"}, ask, answer]),
                   self.attempt([ask, as_transformers_gives({**answer, "reasoning": "r"}, False)])]
        for content, arguments in (("", {"x": 1}), (None, {"x": 1}), (None, '{"x": 1}')):  # templates take one or another
            call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}}
            used = [ask, {"role": "assistant", "content": content, "tool_calls": [call]}, result]
            written += [self.attempt(used + [answer], tools), self.attempt(used, tools, opening=True)]
        return "\n".join(text for text in written if text)

    def opening(self):
        """What the template writes before an answer that is to be generated."""
        ask = [{"role": "user", "content": "u"}]
        text, prompt = self.attempt(ask), self.attempt(ask, opening=True)
        return prompt[len(text):] if text and prompt and prompt.startswith(text) else ""

    def answer(self, messages, tools, i):
        """The text that generation of message i starts from, and what it goes on with up to its end."""
        try:
            prompt = self.render(messages[:i], tools, opening=True)
        except Problem as problem:
            raise Problem(f"message {i + 1}: the messages before it cannot be rendered alone: {problem}. An answer of "
                          "\"weight\": 0 does not need that") from None
        text = self.render(messages[:i + 1], tools)
        if not text.startswith(prompt):
            prompt, text = prompt.replace(self.guard, ""), text.replace(self.guard, "")
            at = next((n for n, (a, b) in enumerate(zip(prompt, text)) if a != b), min(len(prompt), len(text)))
            raise Problem(f"message {i + 1}: the text to train on is no continuation of the text that generation starts from: "
                          f"after {prompt[max(0, at - 40):at]!r} one has {text[at:at + 40]!r}, the other {prompt[at:at + 40]!r}")
        said = text[len(prompt):]
        end = said.find(self.stop) if self.stop else -1
        return prompt, said[:end + len(self.stop)] if end >= 0 else said.rstrip()

    def documents(self, messages, tools, wanted, split):
        made, end, total = [], len(messages), None
        found = {}  # answers that stand otherwise in the documents so far
        without_reasoning = set()  # answers whose reasoning the template leaves out
        while True:
            text = self.render(messages[:end], tools)
            answers, rewritten = [], []
            for i in wanted:
                self.show_life()
                prompt, said = found.pop(i, None) or self.answer(messages, tools, i)
                reasoning = messages[i].get("reasoning_content")
                if isinstance(reasoning, str) and reasoning.strip() not in said:
                    without_reasoning.add(i)
                if not text.startswith(said, len(prompt)) or not text.startswith(prompt):
                    rewritten.append(i)
                    found[i] = prompt, said
                elif said:
                    begin = len(prompt.encode())
                    answers.append([i, begin, begin + len(said.encode())])
            total = len(rewritten) if total is None else total
            if answers or not split:
                made.append({"messages": end, "text": text, "answers": answers})
            if not rewritten or not split:
                return {"documents": made[::-1], "rewritten": total, "without_reasoning": len(without_reasoning)}
            wanted, end = rewritten, rewritten[-1] + 1

    def show_life(self):
        """An empty line, where a conversation of many answers takes long: each of them takes two renderings."""
        if time.monotonic() - self.shown < SIGN_SECONDS:
            return
        self.shown = time.monotonic()
        signal.alarm(SECONDS)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()

    def answer_to(self, request, messages):
        self.shown = time.monotonic()
        tools = self.guarded(request.get("tools"))
        if tools or any(message.get("tool_calls") for message in messages):
            self.check_tools(messages, tools, request["ask"] == "prompt")
        if request["ask"] == "documents":
            return self.documents(messages, tools, request["wanted"], request["split"])
        return {"text": self.render(messages, tools, opening=request["ask"] == "prompt")}

    def reply(self, request):
        given = request["messages"]
        forms = [given]
        if any(isinstance(message.get("content"), list) for message in given):
            forms.append([in_one_text(message) for message in given])  # templates that take content for a text
        for form in forms:
            messages = self.guarded(form)  # what names are is told in the text that the template gets
            try:
                return self.answer_to(request, [as_transformers_gives(message, False) for message in messages])
            except Problem as found:
                problem = found
            if all(value is not None for message in messages for value in message.values()):
                continue
            try:  # templates that look for content that is none
                return self.answer_to(request, [as_transformers_gives(message, True) for message in messages])
            except Problem:
                pass
        raise problem


def say(value):
    line = json.dumps(value, ensure_ascii=False) + "\n"
    sys.stdout.buffer.write(line.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def main():
    if jinja2 is None:
        return say({"missing": "jinja2"})
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    chat = None
    for line in sys.stdin.buffer:
        signal.alarm(SECONDS)
        try:
            request = json.loads(line)
            if chat is None:
                chat = Chat(request)
                say({"stop": chat.stop, "frame": chat.frame(), "opening": chat.opening()})
            else:
                say(chat.reply(request))
        except (Problem, jinja2.exceptions.TemplateError) as error:
            where = f" in line {error.lineno}" if getattr(error, "lineno", None) else ""
            say({"error": f"{error}{where}".replace(chat.guard, "") if chat else f"{error}{where}"})
        except (MemoryError, RecursionError) as error:
            say({"error": f"the template fails: {type(error).__name__}"})
        signal.alarm(0)


main()
