package contract

import (
	"encoding/binary"
	"math"
)

// A write of several keys at once, a transaction, has one revision, as in etcd: its keys change
// together, and no client ever learns of a state, or of a revision, in between.
//
// Its rows are stored so that all else stays as it is. The last one is the row at the revision, as
// any other write's: by it the log is dense, and by its token the history is compared. The rows
// before it are the transaction's parts. They are stored at negative numbers, where what reads the
// log by revisions does not meet them:
//
//	ID of the row at revision r:          r
//	ID of part p (1, 2, …) at revision r: -(r*512 + p)
//
// So each row has a number of its own, its ID, which is the primary key of the log, and by which a
// live row names its row of the log, and a row the one that it replaced. What a client sees is the
// revision, which is made of the ID alone. Revisions rise by one with each transaction. An
// ordinary write has no part, and pays nothing.
//
// What reads rows by revisions has to say what it does about parts:
//
//   - A live row that is a part is at or below a revision r if its ID is not below [Lowest](r). So
//     a bound of live rows, and one of replaced rows, is a range of IDs, [Lowest](r) to r.
//   - What reads the log's rows in order reads the parts besides ([Backend.Parts]), where the token
//     of a row says that there are some ([Token.Parts]). It finds all of them or knows that
//     compaction has passed them, since the token says how many there are.
//   - What was changed since a revision, and what can be swept, is the rows after it and the parts
//     below [Lowest](r).
//   - The head, and whether the history is the one that was seen, are asked of the last rows only.
//     They are committed together with their parts, and stay when these are swept, or go before.

// RowID names a row of the log. It is the row's revision, or negative for a part of a transaction.
type RowID = Revision

// MaxParts is the greatest number of parts of a transaction, whose last row is none.
const MaxParts = 1<<partBits - 1

const partBits = 9

// lastOfParts is the last revision at which there may be parts.
const lastOfParts Revision = math.MaxInt64 >> partBits

// IDOf returns the ID of a part of the transaction at a revision. 0 is its last row.
func IDOf(r Revision, part int) RowID {
	if part == 0 {
		return r
	}
	return -(r<<partBits + RowID(part))
}

// Revision returns the revision of the row with an ID.
func (id Revision) Revision() Revision {
	if id < 0 {
		return -id >> partBits
	}
	return id
}

// Part returns which part of its transaction the row with an ID is, 0 for the last one.
func (id Revision) Part() int {
	if id < 0 {
		return int(-id & MaxParts)
	}
	return 0
}

// Lowest returns the lowest ID of a part at a revision. All parts at later ones are below it.
func Lowest(r Revision) RowID {
	if r > lastOfParts {
		return math.MinInt64
	}
	return IDOf(r, MaxParts)
}

// sizeAt is where a token says how many parts its transaction has.
const sizeAt = len(Token{}) - 2

// NewTransactionToken makes a token for the rows of a transaction with so many parts.
func NewTransactionToken(parts int) Token {
	t := NewToken()
	binary.BigEndian.PutUint16(t[sizeAt:], uint16(parts))
	return t
}

// Parts returns how many parts the transaction has whose last row has the token.
func (t Token) Parts() int { return int(binary.BigEndian.Uint16(t[sizeAt:])) }
