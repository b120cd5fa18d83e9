"""Uses the library etcd3. It fails at the first answer that is not etcd's."""

import sys

import etcd3

c = etcd3.client(host=sys.argv[1], port=int(sys.argv[2]))
assert c.status().version.startswith("3.")
assert len(list(c.members)) == 1

c.put("k", "v")
assert c.get("k")[0] == b"v"
assert c.put_if_not_exists("once", "1") and not c.put_if_not_exists("once", "2")
assert c.replace("k", "v", "w") and not c.replace("k", "v", "x")
for i in range(3):
    c.put("p/%d" % i, str(i))
assert [v for v, _ in c.get_prefix("p/", sort_order="ascend")] == [b"0", b"1", b"2"]
done, _ = c.transaction(compare=[c.transactions.value("k") == "w"],
                        success=[c.transactions.put("k", "x")], failure=[])
assert done and c.get("k")[0] == b"x"
assert c.delete("k") and not c.delete("k")
assert c.delete_prefix("p/").deleted == 3

lease = c.lease(60)
assert 0 < lease.remaining_ttl <= 60
c.put("leased", "v", lease)
assert lease.keys == [b"leased"]
lease.refresh()
lease.revoke()
assert c.get("leased") == (None, None)

events, cancel = c.watch("watched")
c.put("watched", "seen")
assert next(events).value == b"seen"
cancel()

lock = c.lock("l", ttl=60)
assert lock.acquire() and lock.is_acquired()
assert lock.release()
print("passed")
