package mvcc

import (
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestTrail: what was seen is compared with what is delivered, whatever comes first.
func TestTrail(t *testing.T) {
	at := func(r contract.Revision, token byte) contract.Position {
		return contract.Position{Epoch: 1, Revision: r, Token: contract.Token{token}}
	}
	fresh := func() *trail {
		tr := &trail{}
		tr.reset(at(2, 2))
		return tr
	}
	see := func(tr *trail, p contract.Position, want sight) {
		t.Helper()
		if known, got := tr.see(p); got != want ||
			got == contradicts && (known.Revision != p.Revision || known.Token == p.Token) {
			t.Errorf("%+v is %d, want %d; known is %+v", p, got, want, known)
		}
	}
	pass := func(tr *trail, suspect contract.Position, groups ...contract.Position) {
		t.Helper()
		if known, ok := tr.pass(groups); known != suspect || ok != (suspect == contract.Position{}) {
			t.Errorf("passing %+v says %+v, %t", groups, known, ok)
		}
	}

	tr := fresh()
	see(tr, at(2, 2), agrees)
	see(tr, at(2, 9), contradicts)
	see(tr, at(1, 1), unproven)
	see(tr, at(5, 5), agrees)
	see(tr, at(3, 3), agrees) // by an answer that took longer
	see(tr, at(3, 9), contradicts)
	if tr.newest() != at(5, 5) {
		t.Errorf("the newest is %+v", tr.newest())
	}
	pass(tr, contract.Position{}, at(4, 3)) // the group went on after 3
	see(tr, at(3, 3), agrees)               // within a group that was delivered
	see(tr, at(3, 9), contradicts)
	pass(tr, at(5, 5), at(5, 9), at(6, 6)) // 5 was lost
	pass(tr, contract.Position{}, at(5, 5), at(6, 6))
	if tr.delivered() != at(6, 6) || tr.newest() != at(6, 6) {
		t.Errorf("%+v is delivered, and the newest %+v", tr.delivered(), tr.newest())
	}

	// 3 and 5 were seen, 3 was lost before 5 was seen.
	tr = fresh()
	see(tr, at(3, 3), agrees)
	see(tr, at(5, 5), agrees)
	pass(tr, at(3, 3), at(3, 9), at(4, 4), at(5, 5))

	// Compaction comes first: what can still be asked for is compared.
	tr = fresh()
	for _, r := range []contract.Revision{3, 6, 7, 9} {
		see(tr, at(r, byte(r)), agrees)
	}
	tr.skip(contract.State{Head: at(8, 8), Compacted: 6})
	if tr.delivered() != at(6, 6) || len(tr.ahead) != 2 {
		t.Errorf("it goes on at %+v, before %+v", tr.delivered(), tr.ahead)
	}
	tr.skip(contract.State{Head: at(8, 8), Compacted: 8})
	if tr.delivered() != at(8, 8) || len(tr.ahead) != 1 {
		t.Errorf("it goes on at %+v, before %+v", tr.delivered(), tr.ahead)
	}

	// The number of remembered positions is bounded.
	tr = fresh()
	for r := range contract.Revision(maxAhead) {
		see(tr, at(r+3, 1), agrees)
	}
	see(tr, at(maxAhead+3, 1), crowded)
	see(tr, at(3, 1), agrees)
	for r := range contract.Revision(3 * maxPassed) {
		pass(tr, contract.Position{}, at(r+3, 1))
	}
	if n := len(tr.passed); n < maxPassed || n > 2*maxPassed {
		t.Errorf("%d groups are remembered", n)
	}
	see(tr, at(3, 1), unproven)
	see(tr, at(maxAhead+3, 1), agrees)
}
