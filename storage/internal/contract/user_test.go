package contract

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestUserIsStorable: whatever a client calls itself, every database can store it.
func TestUserIsStorable(t *testing.T) {
	long := strings.Repeat("é", MaxUserBytes)
	for _, test := range []struct{ name, id, wantName, wantID string }{
		{"alice", "id", "alice", "id"},
		{"", "id", "", "id"},
		{"a\x00b\nc\x7f", "\xff\xfe", "a\ufffdb\ufffdc\ufffd", "\ufffd\ufffd"},
		{long, strings.Repeat("i", 64), long[:508] + "…", strings.Repeat("i", 64)},
		{"x" + long, strings.Repeat("i", 65), "x" + long[:508] + "…", strings.Repeat("i", 61) + "…"},
		// What takes the place of a byte has three.
		{strings.Repeat("\x01", MaxUserBytes), "", strings.Repeat("\ufffd", 169) + "…", ""},
	} {
		got := (&User{Name: test.name, AuditID: test.id}).Stored()
		if got == nil || got.Name != test.wantName || got.AuditID != test.wantID {
			t.Errorf("%q, %q is stored as %+v, want %q, %q", test.name, test.id, got, test.wantName,
				test.wantID)
			continue
		}
		if len(got.Name) > MaxUserBytes || len(got.AuditID) > MaxAuditIDBytes ||
			!utf8.ValidString(got.Name) || !utf8.ValidString(got.AuditID) {
			t.Errorf("%+v is not what every database stores", got)
		}
		if again := got.Stored(); *again != *got {
			t.Errorf("%+v is stored as %+v", got, again)
		}
		if got.Bytes() != len(got.Name)+len(got.AuditID) {
			t.Errorf("%+v counts as %d bytes", got, got.Bytes())
		}
	}
	for _, none := range []*User{nil, {}} {
		if got := none.Stored(); got != nil || none.Bytes() != 0 {
			t.Errorf("%+v is stored as %+v", none, got)
		}
	}
}
