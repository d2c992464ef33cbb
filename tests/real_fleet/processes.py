"""Processes of this machine, as the faults need them."""
import os


def processes(parent):
    """Names of a process's descendants by pid."""
    found, children = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = open(f"/proc/{entry}/stat").read()
        except OSError:
            continue
        name, fields = text[text.index("(") + 1:text.rindex(")")], text.rsplit(")", 1)[1].split()
        children.setdefault(int(fields[1]), []).append((int(entry), name))
    waiting = [parent]
    while waiting:
        for pid, name in children.get(waiting.pop(), []):
            found[pid] = name
            waiting.append(pid)
    return found
