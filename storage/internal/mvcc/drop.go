package mvcc

import "github.com/rowkeeper/rowkeeper/storage/internal/contract"

// sameStore returns an error if the store was dropped, or another one is in its place.
func (s *Engine) sameStore(id contract.Identity) error {
	switch {
	case id.Epoch < 0:
		return s.gone(contract.ErrDropped)
	case id.Store != s.identity:
		return s.gone(contract.AnotherStore(id.Store, s.identity))
	}
	return nil
}

// gone ends the watches of a store that is not there any more, and returns the error that says so.
func (s *Engine) gone(err error) error {
	if s.hub.close(err) {
		s.log.Error("all watches end", "err", err)
		s.droppedOnce.Do(func() { close(s.dropped) })
	}
	return err
}

// Dropped is closed when this process has learnt that the store was dropped. If it has not noticed
// that before another one was created, it has learnt that another one is in its place. It is closed
// as well if the store is broken.
func (s *Engine) Dropped() <-chan struct{} { return s.dropped }
