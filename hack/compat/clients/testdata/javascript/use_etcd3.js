// Uses the library etcd3. It fails at the first answer that is not etcd's.

const assert = require('node:assert/strict');
const { once } = require('node:events');
const { Etcd3 } = require('etcd3');

const hosts = process.argv[2];
const c = new Etcd3({ hosts });

async function keys() {
  await c.put('k').value('v');
  assert.equal(await c.get('k'), 'v');
  assert.equal(await c.get('missing'), null);
  await c.put('k').value('w');
  assert.equal((await c.put('k').value('x').getPrevious()).value.toString(), 'w');
  assert.equal((await c.delete().key('k').exec()).deleted, '1');

  const space = c.namespace('p/');
  for (let i = 0; i < 3; i++) await space.put(String(i)).value(i);
  assert.deepEqual(await c.getAll().prefix('p/').strings(), { 'p/0': '0', 'p/1': '1', 'p/2': '2' });
  assert.deepEqual(await space.getAll().sort('Key', 'Descend').limit(2).keys(), ['2', '1']);
  assert.equal(await space.getAll().count(), 3);
  assert.equal((await c.delete().prefix('p/').exec()).deleted, '3');
}

async function transactions() {
  await c.put('k').value('v');
  await c.put('other').value('o');
  let done = await c.if('k', 'Value', '==', 'v').and('other', 'Value', '==', 'o')
    .and('missing', 'Version', '==', 0).then(c.put('k').value('w')).commit();
  assert.equal(done.succeeded, true);
  done = await c.if('other', 'Value', '==', 'changed').then(c.put('k').value('x'))
    .else(c.get('k')).commit();
  assert.equal(done.succeeded, false);
  assert.equal(done.responses[0].response_range.kvs[0].value.toString(), 'w');

  // Both read the number before either has written it, and one of them does it again.
  await c.put('n').value('0');
  await Promise.all([1, 2, 3, 4].map(() => c.stm({ retries: 20 }).transact(async (tx) => {
    await tx.put('n').value(Number(await tx.get('n')) + 1);
  })));
  assert.equal(await c.get('n').number(), 4);
}

async function leases() {
  const lease = c.lease(60);
  await lease.put('leased').value('v');
  const kept = once(lease, 'keepaliveSucceeded');
  await lease.keepaliveOnce();
  await kept;
  await lease.revoke();
  assert.equal(await c.get('leased'), null);
}

async function watches() {
  const watcher = await c.watch().prefix('watched/').withPreviousKV().create();
  const put = once(watcher, 'put');
  await c.put('watched/k').value('seen');
  assert.equal((await put)[0].value.toString(), 'seen');
  const deleted = once(watcher, 'delete');
  await c.delete().key('watched/k').exec();
  assert.equal((await deleted)[1].value.toString(), 'seen');
  await watcher.cancel();
}

async function locks() {
  let inside = 0;
  await Promise.all([1, 2, 3].map(async () => {
    const lock = c.lock('l').ttl(60);
    for (;;) {
      try {
        await lock.acquire();
        break;
      } catch (e) {
        if (e.constructor.name !== 'EtcdLockFailedError') throw e;
      }
    }
    assert.equal(++inside, 1);
    await c.get('k');
    inside--;
    await lock.release();
  }));

  const election = c.election('e', 60);
  const first = election.campaign('a');
  await once(first, 'elected');
  assert.equal(await election.leader(), 'a');
  const second = election.campaign('b');
  const elected = once(second, 'elected');
  await first.resign();
  await elected;
  assert.equal(await election.leader(), 'b');
  await second.resign();
}

// As with etcd, a server without users refuses a client of this library that has one.
async function users() {
  const user = new Etcd3({ hosts, auth: { username: 'root', password: 'letmein' } });
  await assert.rejects(user.get('k').exec(), /authentication is not enabled/);
  user.close();
}

async function main() {
  for (const part of [keys, transactions, leases, watches, locks, users]) await part();
  c.close();
  console.log('passed');
  process.exit(0); // the library lets a timer of a lease run
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
