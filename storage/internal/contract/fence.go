package contract

// A fence moves the head to where the clock says, so that the marker rises with time. To be beyond
// what this process has seen is not enough: if the same backup were restored twice, both fences
// would come to the same revision. No history can have come as far that began earlier and takes
// fewer writes than the clock counts. For fences of one moment, and where the clock was set back,
// see [Fence.Marker].
//
// Clients in JavaScript hold revisions as numbers of 53 bits, and compare them. And up to
// lastOfParts there is room for transactions of several keys. So there are three paces. At the slow
// one, revisions stay below exact until the year 2038. A history that has come to exact, by
// whatever way, goes on from there at half of it, which leaves room for transactions until the year
// 2106. One that has come beyond that goes on at the fast pace, which fits until the year 2242. A
// jump is four seconds of the slow pace or the fast one: fences that follow each other at once run
// ahead of the clock by four seconds each, or at half the pace by eight.
const (
	// exact is the first revision that a number of 53 bits cannot tell from the next one.
	exact Revision = 1 << 53

	slowPerSecond Revision = 1 << 22
	slowJump      Revision = 4 * slowPerSecond
	halfPerSecond Revision = slowPerSecond / 2
	fastPerSecond Revision = 1 << 30
	fastJump      Revision = 4 * fastPerSecond
)

// JumpBefore is how far a fence that led to a revision has moved the head at least. At a hundred
// thousand writes per second, another replica is minutes away from having seen a revision that is
// used again.
func JumpBefore(r Revision) Revision {
	if r < lastOfParts {
		return slowJump
	}
	return fastJump
}

// NewFence is a fence by a process that has seen the position, of a database with this identity.
func NewFence(seen Position, id Identity) Fence {
	return Fence{Seen: seen, Replaces: id.Epoch, Token: NewToken(), Jump: slowJump,
		PerSecond: slowPerSecond, Of: id.Actual, Fingerprint: id.Actual}
}
