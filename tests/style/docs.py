"""What the documents say is so: C in README.md and docs/guide is cut from an example that is built and run, and links lead somewhere."""
import os
import re

from lib import checks

BLOCK = re.compile(r"^```c\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def plain(text):
    """Lines without indentation and blank ones: a cut-out stands further left than its source."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def stands_in(block, source):
    a, b = plain(block), plain(source)
    return any(b[i:i + len(a)] == a for i in range(len(b) - len(a) + 1))


def pages(root):
    return [p for p in ("README.md", *checks.files(root, "docs/guide", ".md")) if os.path.exists(os.path.join(root, p))]


def unbuilt(root):
    sources = [checks.read(root, p) for p in checks.files(root, "examples", ".c")]
    found = []
    for page in pages(root):
        for match in BLOCK.finditer(checks.read(root, page)):
            if not any(stands_in(match.group(1), s) for s in sources):
                found.append(f"{page}: this C is in no file of examples/:\n{match.group(1)}")
    return found


def dead_links(root):
    found = []
    tops = [p for p in os.listdir(root) if p.endswith(".md")]
    for page in tops + checks.files(root, "docs", ".md"):
        for target in LINK.findall(checks.read(root, page)):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not os.path.exists(os.path.join(root, os.path.dirname(page), target)):
                found.append(f"{page}: {target} is not there")
    return found


def c_in_the_guide_is_cut_from_examples():
    assert not (found := unbuilt(checks.SOURCE)), "\n".join(found)


def links_lead_somewhere():
    assert not (found := dead_links(checks.SOURCE)), "\n".join(found)


def each_fault_is_caught():
    with checks.scratch() as root:
        checks.write_tree(root, {"examples/a/a.c": "int main(void)\n{\n    go();\n    return 0;\n}\n",
                                 "README.md": "```c\ngo();\nreturn 0;\n```\n[a](examples/a/a.c)\n", "docs/guide/x.md": ""})
        assert not unbuilt(root) and not dead_links(root), "a good tree"
        checks.write_tree(root, {"docs/guide/x.md": "```c\ngo();\nreturn 1;\n```\n[a](b.md)\n"})
        assert len(unbuilt(root)) == 1 and len(dead_links(root)) == 1, "a bad tree"


checks.main(c_in_the_guide_is_cut_from_examples, links_lead_somewhere, each_fault_is_caught)
