"""The code of the handlers of replicas, in parts.

Those that record append a line to a file of their process for each step. The file survives any end
of the process, so no step is missing.
"""

HEAD = """
import os
import webop

KIND = (os.environ['GROUP'], 'v1', os.environ['PLURAL'])
"""

SERVING = """
@webop.on.startup()
def serve(settings, **_):
    settings.admission.server = webop.WebhookServiceServer(
        service='webhooks',
        namespace=os.environ['NAMESPACE'],
        service_port=int(os.environ['SERVICE_PORT']),
        addr='127.0.0.1',
        port=int(os.environ['PORT']),
        poll_interval=1.0,
        settle_time=float(os.environ['SETTLE_TIME']),
    )
    settings.admission.managed = os.environ['MANAGED']
"""

STAMPING = """
@webop.on.mutate(*KIND, operations=['CREATE'])
async def stamp(patch, **_):
    patch.spec['stamped'] = True
"""

RECORDING = """
import asyncio
import itertools
import json
import time

FILE = os.open(os.environ['EVIDENCE'], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
NUMBERS = itertools.count()
daemons = 0

def note(what, **fields):
    moment = time.clock_gettime(time.CLOCK_MONOTONIC)
    os.write(FILE, json.dumps([what, moment, fields]).encode() + b'\\n')

class Call:
    def __init__(self, handler, uid, spec, meta, retry, **_):
        self.number = next(NUMBERS)
        self.fields = dict(
            handler=handler, uid=uid, version=spec['version'], retry=retry,
            rv=int(meta['resourceVersion']), wall=time.time(),
        )

    def __enter__(self):
        note('begin', call=self.number, **self.fields)
        return self

    def __exit__(self, kind, exc, _):
        names = {None: 'done', webop.TemporaryError: 'later', webop.PermanentError: 'failed'}
        outcome = 'cancelled' if kind is asyncio.CancelledError else names.get(kind, repr(exc))
        delay = exc.delay if outcome == 'later' else 0
        note('end', call=self.number, outcome=outcome, delay=delay)

    async def work(self, seconds):
        for _ in range(2):
            await asyncio.sleep(seconds / 2)
            note('step', call=self.number)

async def handle(handler, spec, uid, retry, fails=0, **kwargs):
    with Call(handler, uid, spec, kwargs['meta'], retry) as call:
        await call.work(spec['pace'])
        if retry < fails:
            raise webop.TemporaryError('not yet', delay=spec['delay'])
        if spec.get('doomed') and handler == 'adjusted':
            raise webop.PermanentError('never')
    return {'version': spec['version'], 'uid': uid}

@webop.on.create(*KIND)
async def created(**kwargs):
    return await handle('created', **kwargs)

@webop.on.create(*KIND)
async def settled(spec, **kwargs):
    return await handle('settled', spec, fails=spec['fails'], **kwargs)

# No threads: a process whose threads are at work when its lease is over ends.
@webop.on.update(*KIND)
async def updated(**kwargs):
    return await handle('updated', **kwargs)

@webop.on.update(*KIND)
async def adjusted(spec, **kwargs):
    return await handle('adjusted', spec, fails=spec['fails'], **kwargs)

@webop.on.delete(*KIND)
async def deleted(spec, **kwargs):
    await handle('deleted', spec, fails=min(1, spec['fails']), **kwargs)

@webop.timer(*KIND, interval=4, labels={'timed': 'yes'})
async def tick(**kwargs):
    with Call('tick', **kwargs) as call:
        await call.work(0.2)

@webop.daemon(*KIND, labels={'followed': 'yes'})
async def follow(stopped, **kwargs):
    global daemons
    daemons += 1
    try:
        with Call('follow', **kwargs) as call:
            while not stopped:
                await stopped.wait(2)
                note('step', call=call.number)
    finally:
        daemons -= 1
"""

MEASURING = """
import sys

@webop.on.startup()
async def configure(settings, **_):
    settings.posting.enabled = False
    settings.networking.request_timeout = 20
    settings.watching.inactivity_timeout = 30
    sample(asyncio.get_running_loop())

def sample(loop):
    with open('/proc/self/statm') as file:
        rss = int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
    note(
        'sample', rss=rss, blocks=sys.getallocatedblocks(), daemons=daemons,
        descriptors=len(os.listdir('/proc/self/fd')),
        tasks=len(asyncio.all_tasks(loop)) - daemons,
    )
    loop.call_later(5, sample, loop)

@webop.index(*KIND)
async def uids(uid, **_):
    return {'all': uid}

@webop.on.validate(*KIND, operations=['CREATE'])
async def check(spec, uids, warnings, **_):
    if spec.get('bad'):
        raise webop.AdmissionError('This is bad.', code=400)
    if spec.get('counts'):
        warnings.append(str(len(uids.get('all', ()))))
"""

CHAOS = HEAD + SERVING + RECORDING + STAMPING + MEASURING
