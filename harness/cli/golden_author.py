"""Who promotes or retires a golden, where nobody says."""


def author_or_default(author: str | None) -> str:
    """``author``, else git's user, else the system's; empty, which is refused, where neither has a name."""
    import os
    import pwd
    import shutil
    import subprocess

    if author is not None:
        return author
    git = shutil.which("git")
    if git:
        asked = subprocess.run([git, "config", "user.name"], capture_output=True, text=True, timeout=10, check=False)
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.strip()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a user that its passwd file lacks
        return ""
