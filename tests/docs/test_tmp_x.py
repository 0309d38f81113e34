import time, re, shlex
import tests.docs.test_tour as t
def test_x(tiny_qwen3, smollm2, place):
    page=[p for p in t.CHAPTERS if p.name.startswith("12")][0]
    for mark,text,_ in t.blocks(page):
        if mark in ("sh qwen3","sh floats","sh"):
            for line in t.commands(text):
                b=time.perf_counter(); t.glass(re.sub(r"\b(qwen3-0\.6b|floats)\b", str(tiny_qwen3), line)); print(round(time.perf_counter()-b,2), line)
place=t.place
