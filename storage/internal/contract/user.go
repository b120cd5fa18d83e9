package contract

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// User is who has asked for a write. Their row is beside the log's row of the mutation: the same
// transaction writes both, and the same batch of the sweep removes both. So there is never a user's
// row without its row of the log. The reverse is common: most stores have no users' rows.
//
// Nothing depends on it. It is no part of the history that watches and lists show, and no rule
// reads it.
type User struct {
	// Name is the user's name, and AuditID the ID of the request in the audit log.
	Name, AuditID string
}

// MaxUserBytes and MaxAuditIDBytes bound what is stored of a [User].
const (
	MaxUserBytes    = 512
	MaxAuditIDBytes = 64
)

// Stored returns the user as every database can store it, and in bounded length, nil if nothing is
// left. What is cut off ends with "…". Clients choose audit IDs, and perhaps names, and a text that
// a database refuses would fail the writes of others in the group.
func (u *User) Stored() *User {
	if u == nil {
		return nil
	}
	s := User{Name: storedText(u.Name, MaxUserBytes), AuditID: storedText(u.AuditID, MaxAuditIDBytes)}
	if s == (User{}) {
		return nil
	}
	return &s
}

// storedText is a text of limited length, in which U+FFFD stands for control characters and for
// bytes that are no UTF-8.
func storedText(s string, limit int) string {
	const cut = "…"
	wrong := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }
	if strings.ContainsFunc(s, wrong) {
		s = strings.Map(func(r rune) rune {
			if wrong(r) {
				return utf8.RuneError
			}
			return r
		}, s)
	}
	if len(s) <= limit {
		return s
	}
	end := limit - len(cut)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + cut
}

// Bytes is how much the user counts for the size of a group: 0 for nil.
func (u *User) Bytes() int {
	if u == nil {
		return 0
	}
	return len(u.Name) + len(u.AuditID)
}

// UserRow is the user who has written a row of the log.
type UserRow struct {
	ID RowID
	User
}
