package commandline

import (
	"path/filepath"
	"strings"
)

// Quote writes a word as a shell takes it, in quotes only if it needs them.
func Quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r > '~' ||
			strings.ContainsRune("/._-+:,=@%", r) || r == filepath.Separator
	}
	if word != "" && strings.TrimFunc(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
