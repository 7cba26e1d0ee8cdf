"""Reads an HTML page."""

from html.parser import HTMLParser


class Tags(HTMLParser):
    """The tags of a page in order, each with its attributes; fails on tags that do not close in order."""

    def __init__(self, text):
        super().__init__()
        self.each, self._open = [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.each.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "wbr"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    @property
    def names(self):
        return [tag for tag, _ in self.each]

    def all(self, *attributes):
        """Return the values of these attributes."""
        return [own[name] for _, own in self.each for name in attributes if name in own]
