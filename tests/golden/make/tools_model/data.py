"""Conversations with tools, made at random: what tern-tools is trained on and measured with.

sample(rng, held, most) gives (prompt, answer): the prompt as TEMPLATE renders it, and what the model shall write. With held=True
every value (command, path, text, ...), every invented word and every invented name of a tool or an argument is one that training never
sees: one in eight is held out, by a hash of its text. The phrases of requests and descriptions are the same in both.

usage: data.py N [held]   prints N samples"""
import json, os, random, re, sys, zlib

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ["<|end|>", "<|tools|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|pad|>"]
MARKS = ["<tool_call>", "</tool_call>"]
LAST, RESULT, ABOUT = 700, 500, 64   # characters of the request, of a result and of a description that the model sees

# What the model sees: of each tool its name, required arguments and the beginning of its description, and of the messages the
# end of the last request of the user, the calls after it and the beginnings of their results. Instructions are left out.
TEMPLATE = (
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- macro text(c) -%}{%- if c is string -%}{{ c }}{%- elif c -%}{%- for p in c -%}{{ p.text if p.text is defined else '' }}{%- if not loop.last -%}{{ '\\n' }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
    "{{- '<|tools|>\\n' -}}"
    "{%- for t in tools or [] -%}{%- set f = t.function -%}{{- f.name + '(' -}}{%- set props = f.parameters.properties if f.parameters and f.parameters.properties else {} -%}"
    "{%- for a in (f.parameters.required if f.parameters and f.parameters.required else []) -%}{{- a -}}"
    "{%- if props[a] and props[a].type is string and props[a].type != 'string' -%}{{- ': ' + props[a].type -}}{%- endif -%}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}{%- endfor -%}"
    "{{- '): ' + ((((f.description or '') | trim).split('\\n')[0])[:ABOUT] | trim) + '\\n' -}}{%- endfor -%}"
    "{%- for m in messages -%}{%- if loop.index0 >= ns.last -%}"
    "{%- if m.role == 'user' -%}{{- '<|user|>\\n' + (text(m.content) | trim)[-LAST:] + '\\n' -}}"
    "{%- elif m.role == 'assistant' -%}{{- '<|assistant|>\\n' + (text(m.content) | trim) -}}"
    "{%- for c in m.tool_calls or [] -%}{{- '<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}\\n</tool_call>' -}}{%- endfor -%}{{- '<|end|>\\n' -}}"
    "{%- elif m.role == 'tool' -%}{{- '<|tool|>\\n' + (text(m.content) | trim)[:RESULT] + '\\n' -}}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"
).replace("ABOUT", str(ABOUT)).replace("LAST", str(LAST)).replace("RESULT", str(RESULT))

# ---- tokens ----

SPLIT = re.compile(r"<\|(?:end|tools|user|assistant|tool|pad)\|>|</?tool_call>|[A-Z]*[a-z]+|[A-Z]+[a-z]*|.", re.S)


def bytes_to_unicode():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    n, table = 0, {}
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + n)
            n += 1
    return table


class Tokenizer:
    """Bytes 0 to 255, then the merges, then the marks: the same ids as tokenizer.json gives (see export.py)."""

    def __init__(self, file=f"{HERE}/merges.txt"):
        self.merges = [tuple(l.split()) for l in open(file)]
        self.rank = {m: i for i, m in enumerate(self.merges)}
        self.ids = {chr(b): b for b in range(128)}
        for i, (a, b) in enumerate(self.merges):
            self.ids[a + b] = 256 + i
        for p in SPECIAL + MARKS:
            self.ids[p] = len(self.merges) + 256 + (SPECIAL + MARKS).index(p)
        self.n = 256 + len(self.merges) + len(SPECIAL) + len(MARKS)
        self.known = {p: [i] for p, i in self.ids.items()}
        self.pieces = {i: p for p, i in self.ids.items()}

    def bpe(self, word):
        w = list(word)
        while len(w) > 1:
            r, k = min((self.rank.get(p, 1 << 30), k) for k, p in enumerate(zip(w, w[1:])))
            if r == 1 << 30:
                break
            best, new, k = (w[k], w[k + 1]), [], 0
            while k < len(w):
                if k + 1 < len(w) and (w[k], w[k + 1]) == best:
                    new.append(w[k] + w[k + 1])
                    k += 2
                else:
                    new.append(w[k])
                    k += 1
            w = new
        return [self.ids[p] for p in w]

    def encode(self, text):
        out, known = [], self.known
        for p in SPLIT.findall(text):
            ids = known.get(p)
            if ids is None:
                ids = self.bpe(p) if p.isascii() else list(p.encode())
                if len(known) < 400000:
                    known[p] = ids
            out += ids
        return out

    def decode(self, ids):
        return b"".join(bytes([i]) if i < 256 else self.pieces[i].encode() for i in ids).decode("utf-8", "replace")


# ---- words ----

def held_out(word):
    return zlib.crc32(word.lower().encode()) % 8 == 0


def load_words(file=f"{HERE}/merges.txt"):
    """The pieces of the vocabulary: each must be copied in training, or its row of the output is never trained."""
    return sorted({a + b for a, b in (l.split() for l in open(file))})


WORDS = load_words()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALNUM = LETTERS + LETTERS.upper() + "0123456789"
SIGNS = "äöüßéèñçøåλπдяж中文日本語€…–—“”’✓→½°"
VOWELS, CONSONANTS = "aeiouy", "bcdfghjklmnprstvwxz"
EXT = ["txt", "md", "py", "c", "h", "json", "log", "csv", "sh", "js", "ts", "html", "yaml", "toml", "cfg", "out", "dat", "rs", "go"]


class Maker:
    def __init__(self, rng, held):
        self.r, self.held = rng, held
        self.words = WORDS

    def pick(self, v):
        return v[int(self.r.random() * len(v))]

    def new(self, make):
        """A value of the right side of the split."""
        while True:
            v = make()
            if held_out(v) == self.held:
                return v

    def chance(self, p):
        return self.r.random() < p

    def fake(self):
        while True:
            n = self.r.randint(1, 3)
            w = "".join(self.pick(CONSONANTS) + self.pick(VOWELS) + (self.pick(CONSONANTS) if self.chance(0.3) else "") for _ in range(n))
            if held_out(w) == self.held:
                return w

    def word(self):
        x = self.r.random()
        if x < 0.62:
            return self.pick(self.words)
        if x < 0.85:
            return self.fake()
        if x < 0.92:
            return "".join(self.pick(LETTERS) for _ in range(self.r.randint(2, 9)))
        if x < 0.94:
            return self.fake().capitalize()
        if x < 0.97:
            return "".join(self.pick(ALNUM) for _ in range(self.r.randint(3, 12)))
        return "".join(self.pick("0123456789abcdef") for _ in range(self.r.randint(3, 10)))

    def number(self):
        return str(self.r.randint(0, 10 ** self.r.randint(1, 5)))

    def ident(self, most=3):
        parts = [self.word() for _ in range(self.r.randint(1, most))]
        x = self.r.random()
        if x < 0.6:
            return "_".join(p.lower() for p in parts)
        if x < 0.8:
            return parts[0].lower() + "".join(p.capitalize() for p in parts[1:])
        if x < 0.9:
            return "".join(p.capitalize() for p in parts)
        return "-".join(p.lower() for p in parts)

    def file(self):
        x = self.r.random()
        base = self.word() if x < 0.6 else self.word() + self.pick("-_.") + self.word() if x < 0.85 else self.word() + self.number()
        return base + ("." + self.pick(EXT) if self.chance(0.85) else "")

    def path(self):
        x = self.r.random()
        if x < 0.5:
            return self.file()
        start = self.pick(["/", "/", "./", "../", "~/", "", "", "src/", "/tmp/", "/etc/", "/home/"])
        return start + "".join(self.word() + "/" for _ in range(self.r.randint(0, 3))) + self.file()

    def folder(self):
        return self.pick(["/", "./", "~/", "", "", "/tmp/", "src/"]) + "/".join(self.word() for _ in range(self.r.randint(1, 3)))

    def text(self, most=7):
        words = [self.word() for _ in range(self.r.randint(1, most))]
        if self.chance(0.25):
            k = self.r.randrange(len(words))
            words[k] += self.pick([",", ".", "!", "?", ":", ";", "'s", " 42", " = 1", " é", " ü", "%", " (" + self.word() + ")"])
        if self.chance(0.06):
            words.insert(self.r.randrange(len(words) + 1), "".join(self.sign() for _ in range(self.r.randint(1, 3))))
        if self.chance(0.1):
            words.insert(self.r.randrange(len(words) + 1), self.number())
        if self.chance(0.3):
            words[0] = words[0].capitalize()
        return " ".join(words)

    def sign(self):
        """A character that is not ASCII."""
        while self.chance(0.6):
            a, b = self.pick([(0xa1, 0x24f), (0x370, 0x58f), (0x2010, 0x2bff), (0x3041, 0x9fff), (0xac00, 0xd7a3), (0x1f300, 0x1f64f)])
            c = chr(self.r.randint(a, b))
            if c.isprintable() and not c.isspace():
                return c
        return self.pick(SIGNS)

    def url(self):
        return self.pick(["http://", "https://", "https://www."]) + self.word().lower() + self.pick([".com", ".org", ".net", ".io", ".local:" + self.number()]) + \
            "".join("/" + self.word() for _ in range(self.r.randint(0, 3))) + (("?" + self.word() + "=" + self.word()) if self.chance(0.2) else "")

    def pattern(self):
        return self.pick([lambda: self.word(), lambda: "*." + self.pick(EXT), lambda: "**/" + self.word() + "*", lambda: self.ident(), lambda: "^" + self.word() + ".*$",
                          lambda: self.word() + "\\s+" + self.word(), lambda: self.word() + "(" + self.word() + ")", lambda: self.folder() + "/*." + self.pick(EXT)])()

    def random_line(self):
        return "".join(self.pick(["-", " ", "/", ".", "=", "'", '"', "$", "|", ">", "<", "&", "{", "}", "(", ")", "\\", "#", "@", ",", "*", "!", ";", ":", "+", "%", "~", "`", "[", "]", "_", "^", "?"]) if self.chance(0.3)
                       else self.pick([self.word, self.word, self.number])() + (" " if self.chance(0.5) else "") for _ in range(self.r.randint(3, 14))).strip() or "ls"

    def command(self):
        w, f, p, t, n = self.word, self.file, self.path, self.text, self.number
        c = self.pick(COMMANDS)(self, w, f, p, t, n)
        if self.chance(0.12):
            c += self.pick([" && ", "; ", " | ", " || ", " && "]) + self.pick(COMMANDS)(self, w, f, p, t, n)
        if self.chance(0.06):
            c = self.random_line()
        return c.replace("\n", " ").strip()


COMMANDS = [
    lambda m, w, f, p, t, n: f"echo {t()} > {p()}",
    lambda m, w, f, p, t, n: f"echo {t(3)} > {f()}",
    lambda m, w, f, p, t, n: f"echo {w()} > {f()}",
    lambda m, w, f, p, t, n: f"echo '{t()}' > {f()}",
    lambda m, w, f, p, t, n: f'echo "{t()}" > {p()}',
    lambda m, w, f, p, t, n: f'echo "{t()}" >> {f()}',
    lambda m, w, f, p, t, n: f"echo {w()}",
    lambda m, w, f, p, t, n: f'echo "{t()}"',
    lambda m, w, f, p, t, n: f"echo {t()}",
    lambda m, w, f, p, t, n: f"ls -{m.pick(['l', 'la', 'al', '1', 'R', 'lh'])} {m.folder()}",
    lambda m, w, f, p, t, n: m.pick(["ls", "pwd", "date", "whoami", "uname -a", "df -h", "ps aux", "git status", "make", "make test", "env", "git diff", "ls -la", "id", "uptime", "hostname"]),
    lambda m, w, f, p, t, n: f"cat {p()}",
    lambda m, w, f, p, t, n: f"mkdir -p {m.folder()}",
    lambda m, w, f, p, t, n: f"touch {p()}",
    lambda m, w, f, p, t, n: f"grep -{m.pick(['r', 'rn', 'i', 'c', 'v', 'E'])} {w()} {p()}",
    lambda m, w, f, p, t, n: f'grep -rn "{t(3)}" {m.folder()}',
    lambda m, w, f, p, t, n: f'python3 -c "print({n()} {m.pick("+-*/")} {n()})"',
    lambda m, w, f, p, t, n: f"python3 {p()} --{w()}={w()}",
    lambda m, w, f, p, t, n: f'git commit -m "{t()}"',
    lambda m, w, f, p, t, n: f"git {m.pick(['add', 'checkout', 'push origin', 'merge', 'rebase', 'log -n 5'])} {w()}",
    lambda m, w, f, p, t, n: f"find {m.folder()} -name '*.{m.pick(EXT)}' | wc -l",
    lambda m, w, f, p, t, n: f'find . -type f -name "{w()}*"',
    lambda m, w, f, p, t, n: f"sed -i 's/{w()}/{w()}/g' {p()}",
    lambda m, w, f, p, t, n: f"printf '{w()}\\n{w()}\\n' > {f()}",
    lambda m, w, f, p, t, n: f'printf "%s\\n" "{t()}" > {f()}',
    lambda m, w, f, p, t, n: f"cp {p()} {p()}",
    lambda m, w, f, p, t, n: f"mv {f()} {p()}",
    lambda m, w, f, p, t, n: f"rm -{m.pick(['f', 'r', 'rf'])} {p()}",
    lambda m, w, f, p, t, n: f"date +%{m.pick('YmdHMS')} > {f()}",
    lambda m, w, f, p, t, n: f"curl -s {m.url()}",
    lambda m, w, f, p, t, n: f"head -n {n()} {p()}",
    lambda m, w, f, p, t, n: f"tail -f {p()}",
    lambda m, w, f, p, t, n: f"npm install {w()}",
    lambda m, w, f, p, t, n: f"make -j{n()} {w()}",
    lambda m, w, f, p, t, n: f"for i in {w()} {w()}; do echo $i; done",
    lambda m, w, f, p, t, n: f"{w().upper()}={w()} {w()} -{m.pick(LETTERS)} {p()}",
    lambda m, w, f, p, t, n: f"wc -l {p()} > {f()}",
    lambda m, w, f, p, t, n: f"seq {n()} | {m.pick(['tail', 'head', 'sort', 'wc'])} -{m.pick(['n 3', '1', 'r', 'l'])}",
    lambda m, w, f, p, t, n: f"tar -czf {w()}.tar.gz {m.folder()}",
    lambda m, w, f, p, t, n: f"chmod {m.pick(['+x', '644', '755'])} {p()}",
    lambda m, w, f, p, t, n: f"{w()} {w()} --{w()} {w()} -{m.pick(LETTERS)} {n()}",
    lambda m, w, f, p, t, n: f"./{w()}.sh {w()} {n()}",
    lambda m, w, f, p, t, n: f"docker run --rm {w()}:{n()} {w()}",
    lambda m, w, f, p, t, n: f"cd {m.folder()} && {w()} {w()}",
    lambda m, w, f, p, t, n: f"awk '{{print ${m.r.randint(1, 9)}}}' {p()}",
]

# ---- tools ----
# kind: (names, arguments with names and a maker of values, descriptions, requests)

RUN_NAMES = [a + b for a in ("run_", "execute_", "exec_", "do_", "invoke_", "start_", "run", "exec", "execute", "") for b in
             ("shell", "bash", "command", "cmd", "terminal", "shell_command", "sh", "script", "console", "Bash", "Shell", "ShellCommand", "Command", "in_terminal")]
PATHS = ["path", "file_path", "filePath", "filename", "file", "file_name", "fileName", "target_file", "absolute_path", "filepath", "pathname"]
FOLDERS = ["path", "directory", "dir", "folder", "dir_path", "target_directory", "dirPath", "folder_path", "directory_path", "location"]

KINDS = {
    "shell": (RUN_NAMES, [(["command", "cmd", "command", "shell_command", "script", "command_line", "line", "code", "cmdline", "input", "cmd_string", "bash_command", "shellCommand"], "command")], [
        "Executes a bash command and returns its output.", "Runs a command in a PTY, returning output or a session ID for ongoing interaction.",
        "Executes a given shell command (as `bash -c <command>`) in a persistent process.", "Executes a given bash command in a persistent shell session with optional timeout.",
        "Run a shell command.", "Runs a shell command and returns its output.", "Execute a command in the terminal.", "Run a command in the shell and get stdout and stderr.",
        "Executes commands in a bash shell.", "Runs bash commands.", "Run an arbitrary command on the user's machine.", "Execute a command line with sh.",
        "Runs the given command line and returns the exit code and the output.", "Runs a program in the terminal of the user.", "Performs a command in a Linux shell.",
    ], [
        "Run the shell command: {0}", "Run the command {0!q}.", "Run `{0}`", "Please run this command: {0}", "Execute: {0}", "Run the following command in the shell:\n{0}",
        "Use the shell to run {0!q}.", "run {0}", "Can you run {0!q} for me?", "Execute the command {0!q} and finish.", "Please execute the shell command {0}",
        "Run this in the terminal:\n{0}", "Run this:\n```\n{0}\n```", "Run {0!q} and tell me what it prints.", "In bash, run: {0}", "I want you to run {0!q}.",
        "Run the shell command: {0}", "Run a shell command: {0}", "Run the bash command {0}", "Execute this shell command:\n\n{0}\n\nThen stop.", "Please run {0!q} in the shell.",
        "execute {0!q}", "Run the shell command {0}", "Could you please run the command {0!q}?", "Do this in a shell: {0}", "Shell: {0}", "Run exactly this command: {0}",
        "Run the shell command {0!q} and then finish.", "Use your shell tool to run: {0}", "Start the command {0!q}",
    ]),
    "write": (["write", "Write", "write_file", "create_file", "save_file", "WriteFile", "writeFile", "file_write", "put_file", "make_file", "store_file", "write_to_file"],
              [(PATHS, "path"), (["content", "text", "contents", "data", "file_text", "body", "new_content", "file_content", "fileContent"], "text")], [
        "Writes a file to the local filesystem, overwriting if one exists.", "Writes content to a specified file in the local filesystem.", "Writes a file to the local filesystem.",
        "Create a file with the given content.", "Create or overwrite a file.", "Saves text to a file.", "Write text into a file.", "Creates a new file.", "Stores content in a file on disk.",
        "Put a text into a file.",
    ], [
        "Create the file {0} with the text {1!t}.", "Write {1!t} to the file {0}.", "Create a file named {0} that contains {1!t}.", "Write the text {1!t} into {0}.", "Make a file {0} with the content {1!t}",
        "Create {0} with this content:\n{1}", "Please create the file {0} with the text: {1}", "Save {1!t} as {0}.", "Put {1!t} in the file {0}", "Create a new file {0} with the text {1!t}",
        "Create the file {0} with the text {1}", "Write a file {0} with the text {1!t}", "Write to {0}: {1}", "create a file {0} containing {1!t}", "I need a file {0} with the text {1!t}.",
    ]),
    "read": (["read", "Read", "read_file", "view_file", "open_file", "cat_file", "ReadFile", "get_file", "file_read", "show_file"], [(PATHS, "path")], [
        "Reads a file from the local filesystem.", "Reads and returns the content of a specified file.", "Read a file or directory from the local filesystem.", "Read a file.", "Returns the content of a file.",
        "Get the contents of a file.", "Opens a file and returns its text.", "Shows the text of a file.", "View a text file.", "Load a file from disk.",
    ], [
        "Read the file {0}.", "Show me the file {0}", "What is in {0!q}?", "Read {0} and tell me what it says.", "Open the file {0}.", "Show me the content of {0}", "Read {0!q}.", "What does the file {0} say?", "Please read {0}", "Print the file {0}",
    ]),
    "list": (["list", "ls", "list_directory", "list_dir", "LS", "list_files", "ListFiles", "read_dir", "dir", "listDirectory"], [(FOLDERS, "folder")], [
        "Lists the names of files and subdirectories directly within a folder.", "List the files of a directory.", "Lists a directory.", "Show which files are in a folder.", "Returns the entries of a directory.",
        "List directory contents.", "List files in a given path.",
    ], ["List the files in {0}.", "Which files are in the folder {0}?", "List the directory {0}", "Show me the files in {0!q}.", "What files are there in {0}?", "List {0!q}", "list the folder {0}"]),
    "grep": (["grep", "Grep", "grep_search", "search_files", "search_text", "find_in_files", "code_search", "searchFiles", "ripgrep", "search_content"], [(["pattern", "query", "regex", "search", "term", "needle", "expression"], "pattern")], [
        "A powerful search tool built on ripgrep", "Fast content search tool that works with any codebase size", "Search the contents of files for a pattern.", "Searches files for a regular expression.", "Find text in files.",
        "Search for a string in all files.", "Greps through the project.",
    ], ["Search the files for {0!q}.", "Grep for {0!q}.", "Find {0!q} in the files.", "Which files contain {0!q}?", "Look for {0!q} in the code.", "Search the code for {0!q}", "grep {0!q}"]),
    "glob": (["glob", "Glob", "find_files", "file_search", "match_files", "findFiles", "glob_files"], [(["pattern", "glob", "glob_pattern", "name_pattern", "wildcard"], "pattern")], [
        "Fast file pattern matching tool that works with any codebase size", "Find files by a glob pattern.", "Find files by name.", "Matches file names against a pattern.", "Returns the paths that match a pattern.", "Finds files whose names match."
    ], ["Find the files that match {0!q}.", "Which files match {0!q}?", "Find files named {0!q}.", "List all files matching {0!q}", "Find all files like {0!q}", "Glob {0!q}"]),
    "search": (["web_search", "WebSearch", "search_web", "google", "internet_search", "search", "websearch", "bing", "search_internet"], [(["query", "q", "search_query", "search_term", "question", "keywords", "text"], "text")], [
        "Search the web.", "Search the web. Returns result blocks with titles and links.", "Searches the internet for a query.", "Web search.", "Look something up on the internet.", "Find pages in the web.", "Ask a search engine.",
    ], ["Search the web for {0!t}.", "Search the internet for {0!t}", "Look up {0!t} on the web.", "Do a web search for {0!t}.", "Find {0!t} on the internet.", "Google {0!t}", "Web search: {0}"]),
    "fetch": (["webfetch", "fetch", "web_fetch", "fetch_url", "get_url", "http_get", "download", "open_url", "browse", "WebFetch"], [(["url", "uri", "link", "address", "page", "website"], "url")], [
        "Fetches content from a specified URL", "Fetch a web page.", "Downloads a page by its URL.", "Get the text of a URL.", "Retrieves a page of the web.", "Opens a URL and returns its text.", "Make an HTTP GET request.",
    ], ["Fetch {0}", "Get the page {0}.", "Download {0!q}.", "Open the URL {0}", "Fetch the page {0} and read it.", "What is at {0} ?", "Load {0}"]),
    "message": (["send_message", "SendMessage", "message", "notify", "send", "post_message", "tell", "send_text"], [(["to", "recipient", "receiver", "name", "user", "addressee"], "word"), (["message", "text", "body", "content", "msg"], "text")], [
        "Send a message to another agent.", "Send a text message to a person.", "Sends a message to someone.", "Message a user.", "Delivers a message.", "Notify somebody with a text."
    ], ["Send {0} the message {1!t}.", "Tell {0} {1!t}", "Send a message to {0}: {1}", "Write a message to {0} that says {1!t}.", "Message {0}: {1}", "Send {1!t} to {0}"]),
    "move": (["move_file", "rename", "mv", "moveFile", "rename_file", "relocate"], [(["source", "from", "src", "old_path", "source_path", "from_path"], "path"), (["destination", "to", "dest", "new_path", "target", "to_path"], "path")], [
        "Move or rename a file.", "Renames a file.", "Moves a file to another place.", "Give a file a new name.", "Change the path of a file.", "Move a file."
    ], ["Rename {0} to {1}.", "Move {0} to {1}", "Move the file {0} to {1}.", "Rename the file {0} to {1}", "mv {0} to {1}", "Change the name of {0} to {1}"]),
    "edit": (["edit", "Edit", "edit_file", "replace", "str_replace", "replace_in_file", "editFile", "substitute"], [(PATHS, "path"), (["old_string", "oldString", "old_str", "old_text", "old", "search", "before"], "text"), (["new_string", "newString", "new_str", "new_text", "new", "replacement", "after"], "text")], [
        "Performs exact string replacement in a file.", "Performs exact string replacements in files.", "Replaces text within a file.", "Edit a file by replacing a string.", "Changes a text in a file.", "Replace one string by another in a file."
    ], ["In {0} replace {1!t} by {2!t}.", "Replace {1!t} with {2!t} in the file {0}.", "Edit {0}: change {1!t} to {2!t}", "Change {1!t} to {2!t} in {0}.", "In the file {0}, replace {1!t} with {2!t}.", "Edit the file {0}: {1!t} becomes {2!t}"]),
    "delete": (["delete_file", "remove", "rm", "delete", "deleteFile", "remove_file", "unlink"], [(PATHS, "path")], ["Delete a file.", "Removes a file.", "Deletes a file from disk.", "Remove a file from the file system.", "Erases a file."],
               ["Delete {0}.", "Delete the file {0}", "Remove the file {0}.", "Please remove {0}", "delete {0!q}", "Erase {0}"]),
    "weather": (["get_weather", "weather", "forecast", "getWeather", "current_weather"], [(["city", "location", "place", "town", "where"], "word")], ["Get the weather of a city.", "Current weather.", "Weather forecast for a place.", "Says how the weather is.", "Returns the weather somewhere."],
                ["What is the weather in {0}?", "How is the weather in {0}?", "Get the weather in {0}.", "Weather in {0}?", "Is it warm in {0}?", "weather for {0}"]),
    "calc": (["calculator", "calculate", "calc", "eval", "compute", "math"], [(["expression", "expr", "formula", "input", "term", "sum"], "expression")], ["Evaluates an arithmetic expression.", "A calculator.", "Calculate a formula.", "Does arithmetic.", "Compute the value of an expression."],
             ["Calculate {0}.", "What is {0}?", "Compute {0}", "How much is {0}?", "Please calculate {0}", "calculate {0}"]),
    "image": (["view_image", "show_image", "open_image", "ViewImage", "look_at"], [(PATHS, "path")], ["View a local image file from the filesystem.", "Look at an image.", "Shows a picture.", "Open an image file.", "Loads an image."],
              ["Look at the image {0}.", "View the image {0}", "Show me the picture {0}.", "Open the image {0}", "View the picture {0}"]),
    "skill": (["skill", "Skill", "load_skill", "use_skill", "activate_skill"], [(["skill", "name", "skill_name", "id", "which"], "word")], ["Execute a skill within the main conversation", "Load a specialized skill when the task at hand matches one.", "Loads a skill.", "Use a skill by its name.", "Activates a skill."],
              ["Use the skill {0}.", "Load the skill {0}", "Activate the {0} skill.", "Start the skill {0}", "Run the skill {0}."]),
}
# Tools that no request of the above kinds needs.
OTHERS = [
    ("monitor", ["command"], "Starts a long-running shell command and streams its output as events."), ("watch", ["command"], "Watches a long-running background command."),
    ("write_stdin", ["session_id: number"], "Writes characters to an existing unified exec session and returns recent output."), ("request_user_input", ["questions: array"], "Request user input for one to three short questions."),
    ("get_goal", [], "Get the current goal for this thread, including status."), ("create_goal", ["objective"], "Create a goal only when explicitly requested by the user."), ("update_goal", ["status"], "Update the existing goal."),
    ("Agent", ["description", "prompt"], "Launch a new agent to handle complex, multi-step tasks."), ("agent", ["description", "prompt"], "Launch a new agent to handle complex, multi-step tasks autonomously."),
    ("task", ["description", "prompt", "subagent_type"], "Launch a new agent to handle complex, multistep tasks autonomously."),
    ("CronCreate", ["cron", "prompt"], "Schedule a prompt to be enqueued at a future time."), ("CronDelete", ["id"], "Cancel a cron job previously scheduled with CronCreate."), ("CronList", [], "List all cron jobs scheduled via CronCreate in this session."),
    ("EnterWorktree", [], "Use this tool ONLY when explicitly instructed to work in a worktree"), ("ExitWorktree", ["action"], "Exit a worktree session created by EnterWorktree"),
    ("NotebookEdit", ["notebook_path", "new_source"], "Replaces, inserts, or deletes a single cell in a Jupyter notebook."), ("ReportFindings", ["findings: array"], "Report code-review findings as a typed list."),
    ("ScheduleWakeup", ["delaySeconds: number", "reason", "prompt"], "Schedule when to resume work in /loop dynamic mode"),
    ("TaskCreate", ["subject", "description"], "Use this tool to create a structured task list for your current coding session."), ("TaskGet", ["taskId"], "Use this tool to retrieve a task by its ID from the task list."),
    ("TaskList", [], "Use this tool to list all tasks in the task list."), ("TaskOutput", ["task_id", "block: boolean", "timeout: number"], "DEPRECATED: Background tasks return their output file path"),
    ("TaskStop", [], "- Stops a running background task by its ID"), ("TaskUpdate", ["taskId"], "Use this tool to update a task in the task list."), ("Workflow", [], "Execute a workflow script that orchestrates multiple subagents"),
    ("tool_search", ["query"], "Fetches function declarations for deferred tools"), ("task_stop", ["task_id"], "Stop a background task by its ID."),
    ("todo_write", ["todos: array"], "Use this tool to create and manage a structured task list"), ("todowrite", ["todos: array"], "Create and maintain a structured task list for the current session"),
    ("WebFetch", ["url", "prompt"], "Fetches a URL, converts the page to markdown, and answers a prompt."), ("web_fetch", ["url", "prompt"], "Fetches content from a specified URL and processes it"),
    ("spawn_agent", ["message"], "Spawn a sub-agent for a well-scoped task."), ("wait_agent", ["targets: array"], "Wait for agents to reach a final status."), ("close_agent", ["target"], "Close an agent when it is no longer needed."),
    ("resume_agent", ["id"], "Resume a previously closed agent by id."), ("send_input", ["target"], "Send a message to an existing agent."), ("kill_shell", ["shell_id"], "Kills a running background shell by its ID."), ("BashOutput", ["bash_id"], "Retrieves output from a running background bash shell"),
    ("save_memory", ["fact"], "Saves a specific piece of information to long-term memory."), ("exit_plan_mode", ["plan"], "Use this tool when you are in plan mode."), ("ask_user", ["question"], "Ask the user a question."), ("apply_patch", ["input"], "Use the apply_patch tool to edit files."),
    ("translate", ["text", "language"], "Translates a text into another language."), ("get_time", [], "Returns the current time."), ("play_music", ["song"], "Plays a song."), ("set_timer", ["minutes: integer"], "Sets a timer."),
]
INSTEAD = {"write": "echo '{1}' > {0}", "read": "cat {0}", "list": "ls {0}", "delete": "rm {0}", "move": "mv {0} {1}"}   # by the shell, if there is no tool
PLAIN = [
    (["Hello", "Hi!", "Hello there.", "Good morning", "Hey", "Hi there", "hello!", "Good evening."], "Hello! What shall I do?"),
    (["Thanks!", "Thank you.", "Thank you very much!", "Great, thanks", "Many thanks", "thanks a lot"], "You are welcome."),
    (["Who are you?", "What are you?", "What is your name?", "Tell me who you are.", "Which model are you?", "what model is this?"], "I am tern-tools, a small model that calls tools."),
    (["What can you do?", "How can you help me?", "What are you good at?", "Help", "What do you do?", "what are your abilities?"], "I call the tools that I am given: ask me to run a command or to write a file."),
    (["How are you?", "How do you do?", "Are you well?", "How are you today?", "Is all well?", "how is it going?"], "I am well. What shall I do?"),
    (["Tell me a joke.", "Write a poem.", "Sing a song.", "Explain love.", "Why is the sky blue?", "What do you think about life?", "Tell me a story.", "Who won the game?"], "I can only call tools."),
]
# The tools of real agents, as they send them, and which of them serve a kind of request.
AGENTS = json.load(open(f"{HERE}/agents.json"))
SERVES = {
    "codex": {"shell": "exec_command", "image": "view_image"},
    "claude": {"shell": "Bash", "write": "Write", "read": "Read", "search": "WebSearch", "skill": "Skill", "edit": "Edit", "message": "SendMessage"},
    "qwen": {"shell": "run_shell_command", "write": "write_file", "read": "read_file", "list": "list_directory", "grep": "grep_search", "glob": "glob", "edit": "edit", "skill": "skill"},
    "opencode": {"shell": "bash", "write": "write", "read": "read", "grep": "grep", "glob": "glob", "edit": "edit", "skill": "skill", "fetch": "webfetch"},
}
CHAT = ["What do you think about {}?", "Tell me about {}.", "Explain {} to me.", "Why is {}?", "Do you like {}?", "Tell me a story about {}.", "Write a poem about {}.", "Who was {}?", "Is it true that {}?", "{}", "I like {}.", "What does {} mean?"]
BEFORE = ["Please ", "Now ", "OK, ", "Hi! ", "Task: ", "Next: ", "I have a task for you. ", "Please do this: ", "Hello. ", "Thanks. ", "Then "]
NO_TOOL = "I have no tool for that."
JUNK = [
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n# currentDate\nToday's date is {d}.\n\n      IMPORTANT: this context may or may not be relevant to your tasks. You should not respond to this context unless it is highly relevant to your task.\n</system-reminder>\n",
    "<system-reminder>\n{t}\n</system-reminder>\n", "<environment_context>\n  <cwd>{p}</cwd>\n  <shell>bash</shell>\n  <current_date>{d}</current_date>\n</environment_context>\n", "{t}.\n\n", "Today is {d}. The folder is {p}.\n", "# {t}\n{t}\n{t}\n\n", "<context>\n{t}\n{t}\n</context>\n\n",
]


def quoted(s, m):
    """A value between marks that it does not contain."""
    for q in (["`", '"', "'"] if m.chance(0.6) else ['"', "'", "`"]):
        if q not in s:
            return q + s + q
    return "`" + s + "`"


FIELD = re.compile(r"\{(\d)(?:!(\w))?\}")


def fill(phrase, values, m):
    def put(f):
        v = values[int(f[1])]
        if f[2] == "q":
            return quoted(v, m)
        if f[2] == "t":
            return quoted(v, m) if m.chance(0.7) else v
        return v
    return FIELD.sub(put, phrase)


def value(m, how):
    if how == "expression":
        return m.new(lambda: m.number() + " " + m.pick("+-*/") + " " + m.number())
    return m.new(lambda: getattr(m, how)().strip() or "x")


def tool_of(kind, m):
    """(name, arguments, description) of a tool of this kind."""
    names, args, about, _ = KINDS[kind]
    name = m.new(m.ident) if m.chance(0.5 if m.held else 0.3) else m.pick(names)
    wanted = [m.new(lambda: m.ident(2)) if len(args) == 1 and m.chance(0.5 if m.held else 0.3) else m.pick(choices) for choices, _ in args]
    if len(set(wanted)) < len(wanted):
        wanted = [a[0][0] for a in args]
    return name, wanted, m.pick(about)


def any_tool(m):
    """A tool whose name says nothing, with up to three arguments, for requests by name."""
    args = [m.new(lambda: m.ident(2)) for _ in range(m.r.randint(1, 3))]
    args = list(dict.fromkeys(args))
    return m.new(m.ident), [a + (m.pick([": integer", ": number", ": boolean"]) if m.chance(0.2) else "") for a in args], m.text(10).capitalize() + "."


def shorten(tool, m):
    about = tool[2].split("\n")[0]
    if m.chance(0.2):
        about = about[:40] + "…" if len(about) > 40 else about
    return tool[0], tool[1], about[:ABOUT].strip()


def line_of(tool):
    return f"{tool[0]}({', '.join(tool[1])}): {tool[2]}\n"


def function_of(tool):
    """A tool as the API takes it."""
    args = [a.partition(": ") for a in tool[1]]
    return {"type": "function", "function": {"name": tool[0], "description": tool[2], "parameters": {
        "type": "object", "properties": {n: {"type": t or "string"} for n, _, t in args}, "required": [n for n, _, _ in args]}}}


def call_text(name, args):
    return '<tool_call>\n{"name": "' + name + '", "arguments": ' + json.dumps(args, ensure_ascii=False) + "}\n</tool_call>"


def result_text(m, command):
    """(what the tool answered, the first line of its output or None, whether it failed)"""
    lines = [] if m.chance(0.35) else [m.new(lambda: (m.text(8) if m.chance(0.7) else m.path() if m.chance(0.7) else m.random_line()).strip() or "x") for _ in range(1 if m.chance(0.6) else m.r.randint(2, 6))]
    failed = m.chance(0.12)
    out = "\n".join(lines)
    x = m.r.random()
    code = m.r.choice([1, 2, 126, 127, 128, 255]) if failed else 0
    if x < 0.25:
        n = m.r.randint(0, 999)
        text = f"Chunk ID: {m.r.getrandbits(24):06x}\nWall time: {m.r.random():.4f} seconds\nProcess exited with code {code}\nOriginal token count: {n}\nOutput:\n{out}"
    elif x < 0.5:
        text = f"Command: {command}\nDirectory: (root)\nOutput: {out or '(empty)'}\nError: {'(none)' if not failed else m.text(4)}\nExit Code: {code if failed else m.pick(['0', '(none)'])}\nSignal: {m.pick(['(none)', '0'])}\nProcess Group PGID: {m.number()}"
    else:
        if failed:
            text = m.pick([f"Error: {m.text(5)}", f"bash: line 1: {m.word()}: command not found", f"Exit code {code}\n{out}", f"error: {m.text(4)}", f"<tool_use_error>{m.text(5)}</tool_use_error>", f"cat: {m.path()}: No such file or directory", f"Failed: {m.text(4)}"])
        else:
            text = out or m.pick(["(no output)", "(Bash completed with no output)", "(empty)", "", "(no output)", "Done", "OK"])
            if text in ("Done", "OK"):
                lines = [text]
    return text.strip(), lines[0] if lines else None, failed


def agent_call(m, name, kind, values):
    """The call that answers a request of this kind, or None: values in the order of KINDS, arguments in that of the agent."""
    if kind not in SERVES[name]:
        if kind not in INSTEAD or (kind == "write" and "'" in values[1]):
            return None
        values, kind = [INSTEAD[kind].format(*values)], "shell"
    tool = next(t for t in AGENTS[name] if t[0] == SERVES[name][kind])
    wanted = [next(a for a in tool[1] if a in choices) for choices, _ in KINDS[kind][1]]
    said = dict(zip(wanted, values))
    return tool[0], {a: said[a] for a in tool[1]}


def conversation(rng, held=False, most=26, agent=None):
    """A dictionary: the kind of request, tools, request, and where there is one the call and its result; and the answer that is right."""
    m = Maker(rng, held)
    x = rng.random()
    if agent is None and most > 9 and rng.random() < 0.2:
        agent = m.pick(list(AGENTS))
    n_others = rng.randint(0, most)
    tools, values, answer, call, kind = [], [], None, None, None
    if agent and x > 0.05:                                 # the tools of a real agent
        while not call:
            kind = "shell" if rng.random() < 0.6 else m.pick(list(SERVES[agent]) + list(INSTEAD))
            values = [value(m, how) for _, how in KINDS[kind][1]]
            call = agent_call(m, agent, kind, values)
        request = fill(m.pick(KINDS[kind][3]), values, m)
        n_others, tools = 0, [tuple(t) for t in AGENTS[agent]]
    elif x < 0.08:                                         # nothing to do
        asks, answer = m.pick(PLAIN)
        request = m.pick(asks)
        if m.chance(0.35):
            request = m.pick(CHAT).replace("{}", m.new(lambda: m.text(5)))
            answer = "I can only call tools."
        kinds = rng.sample(list(KINDS), min(len(KINDS), rng.randint(0, 6)))
        tools = [tool_of(k, m) for k in kinds] if not agent else [tuple(t) for t in AGENTS[agent]]
        n_others = 0 if agent else n_others
    elif x < 0.20:                                         # a tool by its name
        tool = any_tool(m)
        tools = [tool]
        args, said = {}, []
        for a in tool[1]:
            name, _, kind = a.partition(": ")
            v = int(m.number()) if kind in ("integer", "number") else m.chance(0.5) if kind == "boolean" else m.new(lambda: m.text(4))
            args[name] = v
            said.append(f"{name} {m.pick(['=', 'is', 'as', ':'])} {v if isinstance(v, int) and not isinstance(v, bool) else json.dumps(v) if isinstance(v, bool) else quoted(v, m)}")
        phrase = m.pick(["Use the tool {0} with {1}.", "Call {0} with {1}", "Call the tool {0}: {1}", "Please use {0} with {1}", "Use {0}: {1}", "Run the tool {0} with {1}", "{0} with {1}", "Call {0} ({1})", "Invoke {0} with {1}.", "I want {0} to be called with {1}."])
        request = phrase.replace("{0}", tool[0]).replace("{1}", m.pick([", ", " and ", "; "]).join(said))
        tools += [any_tool(m) for _ in range(rng.randint(0, 4))]
        tools += [tool_of(k, m) for k in rng.sample(list(KINDS), rng.randint(0, 3))]
        call = (tool[0], args)
    else:
        kind = "shell" if rng.random() < 0.58 else "write" if rng.random() < 0.45 else m.pick(list(KINDS))
        values = [value(m, how) for _, how in KINDS[kind][1]]
        request = fill(m.pick(KINDS[kind][3]), values, m)
        others = [k for k in KINDS if k != kind]
        rng.shuffle(others)
        others = others[:rng.randint(0, min(most, len(others)))]
        y = rng.random()
        if y < 0.05:                                       # no tool at all, or none that fits
            others = [k for k in others if k != "shell"] if m.chance(0.7) else []
            answer = NO_TOOL
            if not others:
                n_others = 0
        elif y < 0.25 and kind in INSTEAD and not (kind == "write" and "'" in values[1]):
            if "shell" not in others:
                others.append("shell")
            values = [INSTEAD[kind].format(*values)]
            kind = "shell"
        tools = [tool_of(k, m) for k in others]
        if answer is None:
            tools = [t for t, k in zip(tools, others) if k != kind]
            tool = tool_of(kind, m)
            args = dict(zip(tool[1], values))
            order = list(tool[1])
            rng.shuffle(order)
            tool = (tool[0], order, tool[2])
            args = {a: args[a] for a in order}
            tools.append(tool)
            call = (tool[0], args)
    if n_others > len(tools) and (tools or m.chance(0.8)):
        unlike = {"fetch": ("web_fetch", "WebFetch"), "message": ("send_input",), "edit": ("apply_patch",)}.get(kind, ())
        tools += [t for t in rng.sample(OTHERS, min(len(OTHERS), n_others - len(tools))) if t[0] not in unlike]
    seen, unique = set(), []
    if call:                                               # the tool that is meant comes first to claim its name
        tools.sort(key=lambda t: t[0] != call[0])
    for t in tools:
        if t[0] not in seen:
            seen.add(t[0])
            unique.append(t)
    if not agent or m.chance(0.5):
        rng.shuffle(unique)
    if m.chance(0.15):
        request = m.pick(BEFORE) + request
    if m.chance(0.1):                                      # the whole request in quotes, as a shell would write it
        request = '"' + request.replace('"', '\\"') + '"'
    if m.chance(0.2):
        junk = ""
        for _ in range(rng.randint(1, 2)):
            junk += re.sub(r"\{(\w)\}", lambda f: f"{rng.randint(2020, 2031)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}" if f[1] == "d" else m.path() if f[1] == "p" else m.text(12).capitalize(), m.pick(JUNK))
        request = (junk + request)
    unique = [shorten(t, m) for t in unique]
    c = {"kind": kind or ("by name" if call else "none"), "tools": unique, "request": request.strip()[-LAST:], "call": None, "result": None, "answer": answer}
    if call and m.chance(0.3):                             # the result is there
        text, first, failed = result_text(m, " ".join(str(v) for v in call[1].values()).replace("\n", " ") or "x")
        c["call"], c["result"] = call, text[:RESULT]
        c["answer"] = "That failed." if failed else f"Done: {first}" if first else "Done."
    elif call:
        c["answer"] = call
    return c


def render(c):
    """(prompt, answer) of a conversation: what TEMPLATE makes of it, and what the model shall write."""
    prompt = "<|tools|>\n" + "".join(line_of(t) for t in c["tools"]) + "<|user|>\n" + c["request"] + "\n"
    if c["call"]:
        prompt += "<|assistant|>\n" + call_text(*c["call"]) + "<|end|>\n<|tool|>\n" + c["result"] + "\n"
    answer = c["answer"] if isinstance(c["answer"], str) else call_text(*c["answer"])
    return prompt + "<|assistant|>\n", answer + "<|end|>"


def sample(rng, held=False, most=26, agent=None):
    return render(conversation(rng, held, most, agent))


def messages(c):
    """The same conversation as the API takes it."""
    out = [{"role": "user", "content": c["request"]}]
    if c["call"]:
        name, args = c["call"]
        out += [{"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(args, ensure_ascii=False)}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": c["result"]}]
    return out


if __name__ == "__main__":
    rng = random.Random(5)
    for _ in range(int(sys.argv[1])):
        p, a = sample(rng, len(sys.argv) > 2)
        print(p + a + "\n" + "-" * 20)
