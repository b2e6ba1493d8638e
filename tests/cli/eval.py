#!/usr/bin/env python3
"""riffle eval end to end on the shipped model. usage: eval.py [RIFFLE | BUILD_DIR]

Prints "ok name" or "not ok name: why" for each check; the exit code is 1 if any failed. The text that facts are hidden
in is made here, so nothing but the model is needed (RIFFLE_MODEL, or the shipped one).
"""
import json, math, os, random, signal, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RIFFLE = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, 'build')
if os.path.isdir(RIFFLE):
    RIFFLE = os.path.join(RIFFLE, 'riffle')
MODEL = os.environ.get('RIFFLE_MODEL') or os.path.join(ROOT, 'models/riffle-27m-32k/riffle-27m-32k-q8_0.gguf')
failed = 0


def check(name, condition, why=''):
    global failed
    failed += not condition
    print(f'ok {name}' if condition else f'not ok {name}: {why}', flush=True)


def run(*args, text=None):
    command = [RIFFLE, 'eval', '-q', '-m', MODEL] + (['--text', text] if text else []) + list(args)
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def lines(output):
    return [json.loads(line) for line in output.splitlines()]


def rows(output):
    return [r for r in lines(output) if r['type'] == 'row']


def prose(n_sentences):
    r = random.Random(5)
    who = 'the old man|her brother|the captain|a stranger|my aunt|the whole party|the doctor|a child'.split('|')
    did = 'walked slowly along|looked down upon|had long forgotten|spoke of|returned to|could not see|longed for'.split('|')
    what = 'the garden behind the house|the quiet river|the road to the village|a letter from home|the empty church'.split('|')
    when = 'that evening|before the rain came|in the early spring|as the lamps were lit|without a word|once more'.split('|')
    out = []
    for i in range(n_sentences):
        s = f'{r.choice(who)} {r.choice(did)} {r.choice(what)} {r.choice(when)}'
        out.append(s[0].upper() + s[1:] + r.choice('....!?') + ('\n' if i % 7 == 6 else ' '))
    return ''.join(out)


with tempfile.TemporaryDirectory() as folder:
    text = os.path.join(folder, 'text.txt')
    with open(text, 'w') as f:
        f.write(prose(400))

    # Flags that must be refused, before or after the model is loaded.
    for name, why, code, args in [
        ('unknown task', "unknown task 'pass'", 2, ['--tasks', 'pass']),
        ('unknown selector', 'expected one of', 2, ['--sweep', 'sparse:epsilon=0.5']),
        ('unknown field', "unknown field 'epsylon'", 2, ['--sweep', 'psa:epsylon=0.5']),
        ('value before field', 'expected field=value', 2, ['--sweep', 'psa:0.5']),
        ('bad number', 'expected a number', 2, ['--sweep', 'psa:epsilon=0.5x']),
        ('bad count', 'expected a whole number', 2, ['--sweep', 'psa:microbatch=1.5']),
        ('bad word', 'expected one of', 2, ['--sweep', 'psa:stop=never']),
        ('value out of range', 'epsilon', 2, ['--sweep', 'psa:epsilon=7', '--length', '1024']),
        ('length beyond the text', '--length 30000', 2, ['--length', '30000']),
        ('nll longer than the document', '--nll 900', 2, ['--length', '1024', '--nll', '900']),
    ]:
        p = run(*args, text=text)
        errors = p.stderr.strip().splitlines()
        check(f'eval refuses {name}', p.returncode == code and len(errors) == 1 and why in errors[0] and p.stdout == '',
              f'exit {p.returncode}, stdout {p.stdout[:80]!r}, stderr {p.stderr[:200]!r}')
    p = run('--length', '1024', text=os.path.join(folder, 'none.txt'))
    check('eval names a missing text', p.returncode == 1 and 'none.txt' in p.stderr, f'exit {p.returncode}: {p.stderr!r}')

    # One run: everything, nothing skipped, and a small budget.
    out, records = os.path.join(folder, 'rows.jsonl'), os.path.join(folder, 'records.jsonl')
    args = ['--length', '1024,2048', '--questions', '24', '--nll', '32', '--coverage', '--json', '--sweep',
            'psa:epsilon=1;topk:budget=0.02,digest=quest,cuboid-mean;psa:epsilon=0.5,stop=veto']
    p = run(*args, '--out', out, '--records', records, text=text)
    check('eval runs', p.returncode == 0 and p.stderr == '', f'exit {p.returncode}: {p.stderr[:300]!r}')
    if p.returncode == 0:
        found = rows(p.stdout)
        check('eval rows', [(r['length'], r['setting']) for r in found] == [
            (n, s) for n in (1024, 2048) for s in ('dense', 'psa epsilon=1', 'topk budget=0.02 digest=quest',
                                                   'topk budget=0.02 digest=cuboid-mean', 'psa epsilon=0.5 stop=veto')],
              str([r['setting'] for r in found]))
        check('eval --out', lines(open(out).read()) == lines(p.stdout), 'differs from stdout')
        asked = lines(open(records).read())
        check('eval --records', len(asked) == 48 and all(len(q['settings']) == 5 for q in asked), f'{len(asked)} questions')
        for i, label in enumerate(['dense', 'psa epsilon=1']):
            check(f'eval {label} reads all and keeps all', all(
                r['answers']['kv_read_pct'] == 100 and r['text']['kv_read_pct'] == 100 and r['total']['kept'] == 1
                and r['total']['lost'] == 0 and r['total']['gained'] == 0 for r in (found[i], found[5 + i])), '')
        for r in found:
            name = f"{r['length']} {r['setting']}"
            t, a, s = r['total'], r['answers'], r['selection']
            check(f'eval {name}: counts agree', t['questions'] == 24 and sum(v['questions'] for v in r['tasks'].values()) == 24
                  and t['lost'] == t['dense_right'] - t['both_right'] and t['gained'] == t['sparse_right'] - t['both_right']
                  and t['sparse_right'] == sum(q['settings'][[x['setting'] for x in q['settings']].index(r['setting'])]['right']
                                               for q in asked if q['length'] == r['length']), json.dumps(t))
            check(f'eval {name}: layers add up', len(a['layers']) > 0
                  and sum(l['kv_blocks_read'] for l in a['layers']) == a['kv_blocks_read'], json.dumps(a))
            check(f'eval {name}: nll', all(0 < x < 12 for x in (r['text']['nll_sparse'], r['text']['nll_dense'],
                                                                t['nll_dense'], t['nll_sparse'])), json.dumps(t))
            if r['setting'] != 'dense':
                mean, low = a['coverage_mean'], a['coverage_p1']
                check(f'eval {name}: coverage', 0 <= low <= mean <= 1.0001 and (s['epsilon'] < 1 or s['selector'] != 'psa'
                                                                              or low > 0.999), f'{mean} {low}')
            if r['setting'].startswith('topk'):
                check(f'eval {name}: reads less', a['kv_read_pct'] < 60, str(a['kv_read_pct']))
            if r['setting'] == 'dense':
                for task in ('passkey', 'person', 'thing'):
                    m = r['tasks'][task]
                    check(f'eval {name}: the model finds a {task}', m['dense_right'] >= m['questions'] - 1, json.dumps(m))
        again = run(*args, text=text)
        strip = lambda r: [[x['length'], x['setting'], x['total'], x['answers']['kv_blocks_read']] for x in r]
        check('eval gives the same twice', again.returncode == 0 and strip(rows(again.stdout)) == strip(found), '')
        emu = run(*args, '--device', 'emu', '--slots', '600', text=text)
        same = emu.returncode == 0 and strip(rows(emu.stdout)) == strip(found)
        check('eval gives the same with a slot pool', same, f'exit {emu.returncode}: {emu.stderr[:200]!r}')
        if emu.returncode == 0:
            hits = [r['answers']['pool_hit_pct'] for r in rows(emu.stdout)]
            check('eval tells pool hits', all(h is not None and 0 <= h <= 100 for h in hits), str(hits))

    p = run('--length', '1024', '--questions', '6', '--nll', '0', '--sweep', 'psa:epsilon=0.5', text=text)
    check('eval table', p.returncode == 0 and '1024 tokens' in p.stdout and '\npsa epsilon=0.5' in p.stdout
          and 'right by task' in p.stdout, p.stdout[:300] + p.stderr[:300])

    p = run('--dense-only', '--length', '1024', '--questions', '6', '--windows', '1', '--json', '-c', '2048', text=text)
    found = lines(p.stdout) if p.returncode == 0 else []
    nll = [r['nll'] for r in found if r['type'] == 'nll']
    check('eval --dense-only', len(nll) == 1 and list(nll[0]) == ['0-1024', '1024-2048']
          and all(0 < x < 12 for x in nll[0].values()), p.stderr[:300] + str(nll))

    # Ctrl-C: what is finished is reported, and the exit code says so.
    seen = os.path.join(folder, 'interrupted.jsonl')
    child = subprocess.Popen([RIFFLE, 'eval', '-q', '-m', MODEL, '--text', text, '--length', '2048', '--questions', '5000',
                              '--json', '--records', seen], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 120
    while time.time() < deadline and child.poll() is None and not (os.path.exists(seen) and os.path.getsize(seen)):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    try:
        stdout, stderr = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        stdout, stderr = child.communicate()
    found = lines(stdout)
    check('eval stops on Ctrl-C with what it has', child.returncode == 130 and found[-1].get('stopped') is True
          and [r for r in found if r['type'] == 'row' and 0 < r['total']['questions'] < 5000],
          f'exit {child.returncode}, {stdout[-300:]!r}, {stderr[:200]!r}')

sys.exit(1 if failed else 0)
