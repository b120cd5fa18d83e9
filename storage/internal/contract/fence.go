package contract

// perSecond makes the revision to which a fence moves rise with time. To be beyond what this
// process has seen is not enough: if the same backup were restored twice, both fences would come to
// the same revision. No history can have come as far that began in an earlier second and takes
// fewer writes than 2^29 a second. For fences within one second, and where the clock was set back,
// see [Fence.Marker]. Until the year 2242 it fits.
const perSecond Revision = 1 << 30

// NewFence is a fence by a process that has seen the position, of a database with this identity.
func NewFence(seen Position, id Identity) Fence {
	return Fence{Seen: seen, Replaces: id.Epoch, Token: NewToken(), Jump: MinJump,
		PerSecond: perSecond, Of: id.Actual, Fingerprint: id.Actual}
}
