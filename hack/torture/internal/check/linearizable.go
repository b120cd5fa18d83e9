package check

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
)

// linearizeFor bounds the search for an order of one namespace.
const linearizeFor = 2 * time.Minute

// state is that of the keys of one resource in one namespace. It can be compared.
type state struct {
	// revision is that of the newest write.
	revision int64
	// objects are the objects that exist: key=revision; in order of the keys.
	objects string
}

// namespace is the sequential specification of these keys: each is at a revision, or does not
// exist. Writes take place in the order of their revisions. This is more than linearizable.
var namespace = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, input, _ any) (bool, any) {
		s := before.(state)
		switch op := input.(type) {
		case rollback:
			return true, state(op)
		case request:
			return step(s, op)
		}
		return false, s
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// rollback is the loss of a part of the history: the namespace is in this state after it.
type rollback state

// request is a request to the namespace.
type request struct {
	*history.Op
	// after is the revision of the write before, if this is a write, 0 if it is unknown. Each write
	// has to find a place in the order of revisions, so the search need not try to leave one out.
	after int64
}

// inTurn tells each write which one comes before it, in a history of which nothing was lost.
func inTurn(ops []porcupine.Operation) {
	var writes []*porcupine.Operation
	for i := range ops {
		if r := ops[i].Input.(request); r.Writes() {
			writes = append(writes, &ops[i])
		}
	}
	slices.SortFunc(writes, func(a, b *porcupine.Operation) int {
		return cmp.Compare(a.Input.(request).RV, b.Input.(request).RV)
	})
	for i := 1; i < len(writes); i++ {
		r := writes[i].Input.(request)
		r.after = writes[i-1].Input.(request).RV
		writes[i].Input = r
	}
}

func step(s state, op request) (bool, state) {
	current := at(s.objects, op.Key)
	switch {
	case op.Verb == history.List:
		return s.objects == encode(op.Items), s
	case op.Verb == history.Get && op.Object == nil:
		return current == "", s
	case op.Verb == history.Get:
		return current == fmt.Sprint(op.Object.RV), s
	case op.Outcome == history.Refused:
		return refused(op.Op, current), s
	}
	fits := op.RV > s.revision && op.after <= s.revision
	switch op.Verb {
	case history.Create:
		fits = fits && current == ""
	case history.Patch:
		fits = fits && current != ""
	default:
		fits = fits && current == fmt.Sprint(op.Expect)
	}
	if !fits {
		return false, s
	}
	revision := fmt.Sprint(op.RV)
	if op.Verb == history.Delete {
		revision = ""
	}
	return true, state{op.RV, replace(s.objects, op.Key, revision)}
}

// refused tells whether a write may be refused while the key is at the revision.
func refused(op *history.Op, current string) bool {
	switch {
	case op.Code == http.StatusNotFound:
		return current == ""
	case op.Verb == history.Create:
		return current != ""
	case op.Verb == history.Patch:
		return true // it has lost to other writers too often
	}
	return current != fmt.Sprint(op.Expect)
}

// at returns the revision of a key in a state, "" if it does not exist.
func at(s, key string) string {
	_, rest, found := strings.Cut(";"+s, ";"+key+"=")
	if !found {
		return ""
	}
	revision, _, _ := strings.Cut(rest, ";")
	return revision
}

// replace puts a key at a revision in a state, "" if it does not exist any more.
func replace(s, key, revision string) string {
	begin, end := 0, 0
	for ; begin < len(s); begin = end {
		end = begin + strings.IndexByte(s[begin:], ';') + 1
		k, _, _ := strings.Cut(s[begin:end], "=")
		if k > key {
			end = begin
		}
		if k >= key {
			break
		}
	}
	if revision != "" {
		revision = key + "=" + revision + ";"
	}
	return s[:begin] + revision + s[end:]
}

func encode(items []history.Object) string {
	revisions := make(map[string]int64, len(items))
	for _, o := range items {
		revisions[o.Key] = o.RV
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(revisions)) {
		fmt.Fprintf(&b, "%s=%d;", k, revisions[k])
	}
	return b.String()
}

// checkLinearizable looks for an order of the requests to each namespace.
func (c *checker) checkLinearizable() {
	parts := map[string][]porcupine.Operation{}
	for i := range c.ops {
		op := &c.ops[i]
		part := op.Key
		switch {
		case op.Outcome == history.NotDone:
			continue
		case op.Outcome == history.Unknown && op.RV == 0:
			continue // it was not done
		case (op.Verb == history.Get || op.Verb == history.List) && op.Outcome != history.Done:
			continue // there was no answer, or not all pages of one
		case op.Verb == history.List:
			whole := op.Selector
			whole.Resource, whole.Namespace = "", ""
			if op.Match != history.Consistent || whole != (history.Selector{}) ||
				op.Selector.Namespace == "" {
				continue
			}
			part = op.Selector.Resource + "/" + op.Selector.Namespace + "/"
		}
		part = part[:strings.LastIndex(part, "/")]
		parts[part] = append(parts[part], porcupine.Operation{ClientId: op.Client,
			Input: request{Op: op}, Call: op.Call, Return: op.Return})
	}
	for part, ops := range parts {
		if len(c.log.epochs) == 1 {
			inTurn(ops)
		}
		for i := 1; i < len(c.log.epochs); i++ {
			e := c.log.epochs[i]
			var survived []history.Object
			for key, o := range c.log.base(i) {
				if strings.HasPrefix(key, part+"/") {
					survived = append(survived, o)
				}
			}
			ops = append(ops, porcupine.Operation{ClientId: -1,
				Input: rollback{e.Survived, encode(survived)}, Call: e.Begun, Return: e.Noticed})
		}
		switch porcupine.CheckOperationsTimeout(namespace, ops, linearizeFor) {
		case porcupine.Ok:
		case porcupine.Unknown:
			c.violate("linearizable", "%s: whether its %d requests are linearizable was not "+
				"found out in %s", part, len(ops), linearizeFor)
		default:
			// An unexplained answer is looked for only now: it takes a time that grows with the
			// square of the number of requests.
			_, info := porcupine.CheckOperationsVerbose(namespace, ops, linearizeFor)
			c.violate("linearizable", "%s: no order explains its %d requests: %s", part, len(ops),
				unexplained(ops, info))
		}
	}
}

// unexplained describes the first request that the longest order of a part of the requests has no
// place for.
func unexplained(ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, partition := range info.PartialLinearizations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	placed := map[int]bool{}
	now := namespace.Init()
	for _, i := range longest {
		placed[i] = true
		_, now = namespace.Step(now, ops[i].Input, nil)
	}
	first := -1
	for i := range ops {
		if !placed[i] && (first < 0 || ops[i].Return < ops[first].Return) {
			first = i
		}
	}
	if first < 0 {
		return "none is left over"
	}
	if r, ok := ops[first].Input.(request); ok {
		op := r.Op
		return fmt.Sprintf("after %d of them the state is %+v, and %s, %s with %d at %d, "+
			"expecting %d, finding %+v and %+v, does not follow", len(longest), now, describe(op),
			op.Outcome, op.Code, op.RV, op.Expect, op.Object, op.Items)
	}
	return fmt.Sprintf("after %d of them the loss of history does not follow", len(longest))
}
