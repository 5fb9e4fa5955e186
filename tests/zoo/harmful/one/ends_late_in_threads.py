"""Threads that wait for longer with the hooks, while the main thread waits for them."""

import os
import threading
import time


def wait():
    time.sleep(12 if "GRADLEDGER_RUN" in os.environ else 0)


threads = [threading.Thread(target=wait) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("the same")
