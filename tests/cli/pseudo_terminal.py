"""The command on a pseudo-terminal: what it prints, and keys that are typed when something has been printed."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time

from command import BIN, Command


class OnTerminal(Command):
    def on_terminal(self, *arguments, environment=None, keys=()):
        """Output, exit code. `keys`: (text to wait for, what to type, the signal to send or the seconds to wait, and how many
        times the text has to be there: once)."""
        main, side = pty.openpty()
        environment = {**self.environment, "TERM": "xterm", **(environment or {})}
        ends = {"stdin": side, "stdout": side, "stderr": side}
        ends["preexec_fn"] = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
        process = subprocess.Popen([BIN, *map(str, arguments)], cwd=self.folder, start_new_session=True, env=environment, **ends)
        os.close(side)
        output, waiting, deadline = b"", list(keys), time.monotonic() + 120
        while time.monotonic() < deadline:
            if select.select([main], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):
                    if block := os.read(main, 65536):
                        output += block
                        while waiting and output.count(waiting[0][0].encode()) >= (*waiting[0], 1)[2]:
                            key = waiting.pop(0)[1]
                            if isinstance(key, float):
                                time.sleep(key)
                            elif isinstance(key, signal.Signals):
                                process.send_signal(key)
                            else:
                                os.write(main, key.encode())
                        continue
            if process.poll() is not None:
                break
        else:
            process.kill()
            self.fail(f"{arguments} did not end: {output!r}")
        os.close(main)
        return output.decode(errors="replace"), process.wait()
