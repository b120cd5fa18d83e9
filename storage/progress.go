package storage

import (
	"sync"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// progress is the set of a store's watches that want to know how far they are, and the newest
// revision that anybody has asked about. A watch that joins later is asked, too: whoever asked may
// be waiting for a watch cache that was just starting again.
type progress struct {
	mu       sync.Mutex
	asked    contract.Revision
	watchers map[*mvcc.Watcher]struct{}
}

func (p *progress) request(at contract.Revision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = max(p.asked, at)
	for w := range p.watchers {
		w.RequestProgress(at)
	}
}

func (p *progress) join(w *mvcc.Watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watchers == nil {
		p.watchers = map[*mvcc.Watcher]struct{}{}
	}
	p.watchers[w] = struct{}{}
	if p.asked > 0 {
		w.RequestProgress(p.asked)
	}
}

func (p *progress) leave(w *mvcc.Watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, w)
}

func (p *progress) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.watchers) == 0
}
