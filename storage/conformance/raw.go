package conformance

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func setGate(t *testing.T, gate featuregate.Feature, enabled bool) {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, enabled)
}

// NotRaw names the functions of upstream's suite that are not run without a watch cache, with the
// reason.
var NotRaw = map[string]string{
	"RunTestOptionalWatchBookmarksWithCorrectResourceVersion": "bookmarks for clients are made " +
		"by the watch cache",
	"RunBenchmarkStoreList":       "a benchmark",
	"RunBenchmarkStoreStats":      "a benchmark",
	"RunBenchmarkWriteThroughput": "a benchmark",
}

// RunRaw runs the suite without a watch cache.
func RunRaw(t *testing.T, c Config) { runTests(t, c, raw) }

type test struct {
	name string
	run  func(*testing.T, Config)
}

// alone names the tests that do not run beside others. Most set feature gates, which are the whole
// process's. Some have parallel parts of their own, which others would keep waiting: an object that
// Get reads lives for a second. Some give the store a few seconds.
var alone = map[string]bool{
	"CompactRevision":                true,
	"ConsistentList":                 true,
	"Get":                            true,
	"GetListNonRecursive":            true,
	"GetListWithErrorAggregation":    true,
	"GetListWithoutErrorAggregation": true,
	"List":                           true,
	"OptionalWatchBookmarksWithCorrectResourceVersion": true,
	"Stats":                              true,
	"TransformationFailure":              true,
	"WatchDeleteEventObjectHaveLatestRV": true,
	"WatchDispatchBookmarkEvents":        true,
	"WatchInitializationSignal":          true,
	"WatchListMatchSingle":               true,
	"WatchSemanticInitialEventsExtended": true,
	"WatchSemantics":                     true,
	"WatchWithUnsafeDelete":              true,
}

// runTests runs the tests that run alone, and then all others at once.
func runTests(t *testing.T, c Config, tests []test) {
	for _, test := range tests {
		if alone[test.name] {
			t.Run(test.name, func(t *testing.T) { test.run(t, c) })
		}
	}
	for _, test := range tests {
		if !alone[test.name] {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				test.run(t, c)
			})
		}
	}
}

var raw = []test{
	{"Create", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestCreate(t.Context(), t, e, e.checkStored)
	}},
	{"CreateWithTTL", func(t *testing.T, c Config) {
		storagetesting.RunTestCreateWithTTL(t.Context(), t, newEnv(t, c))
	}},
	{"CreateWithKeyExist", func(t *testing.T, c Config) {
		storagetesting.RunTestCreateWithKeyExist(t.Context(), t, newEnv(t, c))
	}},
	{"Get", func(t *testing.T, c Config) {
		storagetesting.RunTestGet(t.Context(), t, newEnv(t, c))
	}},
	{"UnconditionalDelete", func(t *testing.T, c Config) {
		storagetesting.RunTestUnconditionalDelete(t.Context(), t, newEnv(t, c))
	}},
	{"ConditionalDelete", func(t *testing.T, c Config) {
		storagetesting.RunTestConditionalDelete(t.Context(), t, newEnv(t, c))
	}},
	{"DeleteWithSuggestion", func(t *testing.T, c Config) {
		storagetesting.RunTestDeleteWithSuggestion(t.Context(), t, newEnv(t, c))
	}},
	{"DeleteWithSuggestionAndConflict", func(t *testing.T, c Config) {
		storagetesting.RunTestDeleteWithSuggestionAndConflict(t.Context(), t, newEnv(t, c))
	}},
	{"DeleteWithSuggestionOfDeletedObject", func(t *testing.T, c Config) {
		storagetesting.RunTestDeleteWithSuggestionOfDeletedObject(t.Context(), t, newEnv(t, c))
	}},
	{"ValidateDeletionWithSuggestion", func(t *testing.T, c Config) {
		storagetesting.RunTestValidateDeletionWithSuggestion(t.Context(), t, newEnv(t, c))
	}},
	{"ValidateDeletionWithOnlySuggestionValid", func(t *testing.T, c Config) {
		storagetesting.RunTestValidateDeletionWithOnlySuggestionValid(t.Context(), t, newEnv(t, c))
	}},
	{"DeleteWithConflict", func(t *testing.T, c Config) {
		storagetesting.RunTestDeleteWithConflict(t.Context(), t, newEnv(t, c))
	}},
	{"DeleteWithConflictAndMissingExpectedTransformOrDecodeError", func(t *testing.T, c Config) {
		codec := &failingCodec{Codec: apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion)}
		storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(t.Context(), t, newEnv(t, c, withCodec(codec)), codec.failing.Store)
	}},
	{"DeleteWithExpectedTransformError", func(t *testing.T, c Config) {
		transformer := &failingTransformer{Transformer: storagetesting.NewPrefixTransformer([]byte(valuePrefix), false)}
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(t.Context(), t,
			newEnv(t, c, withTransformer(transformer)), transformer.failing.Store)
	}},
	{"DeleteWithExpectedDecodeError", func(t *testing.T, c Config) {
		codec := &failingCodec{Codec: apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion)}
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(t.Context(), t,
			newEnv(t, c, withCodec(codec)), codec.failing.Store)
	}},
	{"DeleteWithSuggestionAndMissingExpectedTransformOrDecodeError", func(t *testing.T, c Config) {
		storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(t.Context(), t, newEnv(t, c))
	}},
	{"PreconditionalDeleteWithSuggestion", func(t *testing.T, c Config) {
		storagetesting.RunTestPreconditionalDeleteWithSuggestion(t.Context(), t, newEnv(t, c))
	}},
	{"PreconditionalDeleteWithOnlySuggestionPass", func(t *testing.T, c Config) {
		storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass(t.Context(), t,
			newEnv(t, c))
	}},
	{"List", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestList(t.Context(), t, e, e.compactAndRaise, false, nil)
	}},
	{"ConsistentList", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestConsistentList(t.Context(), t, e, e.raiseRevision, false, true, false)
	}},
	{"GetListNonRecursive", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestGetListNonRecursive(t.Context(), t, e.raiseRevision, e)
	}},
	{"GetListRecursivePrefix", func(t *testing.T, c Config) {
		storagetesting.RunTestGetListRecursivePrefix(t.Context(), t, newEnv(t, c))
	}},
	{"GetListWithErrorAggregation", func(t *testing.T, c Config) {
		setGate(t, features.AllowUnsafeMalformedObjectDeletion, true)
		storagetesting.RunTestGetListWithErrorAggregation(t.Context(), t, newEnv(t, c), errCorrupt)
	}},
	{"GetListWithoutErrorAggregation", func(t *testing.T, c Config) {
		setGate(t, features.AllowUnsafeMalformedObjectDeletion, false)
		storagetesting.RunTestGetListWithoutErrorAggregation(t.Context(), t, newEnv(t, c),
			errCorrupt)
	}},
	{"ListContinuation", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestListContinuation(t.Context(), t, e, e.checkCalls)
	}},
	{"ListPaginationRareObject", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestListPaginationRareObject(t.Context(), t, e, e.checkCalls)
	}},
	{"ListContinuationWithFilter", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestListContinuationWithFilter(t.Context(), t, e, e.checkCalls)
	}},
	{"ListInconsistentContinuation", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestListInconsistentContinuation(t.Context(), t, e, e.compact)
	}},
	{"ListResourceVersionMatch", func(t *testing.T, c Config) {
		storagetesting.RunTestListResourceVersionMatch(t.Context(), t, newEnv(t, c))
	}},
	{"ListPaging", func(t *testing.T, c Config) {
		storagetesting.RunTestListPaging(t.Context(), t, newEnv(t, c))
	}},
	{"NamespaceScopedList", func(t *testing.T, c Config) {
		storagetesting.RunTestNamespaceScopedList(t.Context(), t, newEnv(t, c))
	}},
	{"CompactRevision", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestCompactRevision(t.Context(), t, e, e.raiseRevision, e.compact)
	}},
	{"KeySchema", func(t *testing.T, c Config) {
		storagetesting.RunTestKeySchema(t.Context(), t, newEnv(t, c))
	}},
	{"GuaranteedUpdate", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestGuaranteedUpdate(t.Context(), t, e, e.checkStored)
	}},
	{"GuaranteedUpdateWithTTL", func(t *testing.T, c Config) {
		storagetesting.RunTestGuaranteedUpdateWithTTL(t.Context(), t, newEnv(t, c))
	}},
	{"GuaranteedUpdateChecksStoredData", func(t *testing.T, c Config) {
		storagetesting.RunTestGuaranteedUpdateChecksStoredData(t.Context(), t, newEnv(t, c))
	}},
	{"GuaranteedUpdateWithConflict", func(t *testing.T, c Config) {
		storagetesting.RunTestGuaranteedUpdateWithConflict(t.Context(), t, newEnv(t, c))
	}},
	{"GuaranteedUpdateWithSuggestionAndConflict", func(t *testing.T, c Config) {
		storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict(t.Context(), t,
			newEnv(t, c))
	}},
	{"TransformationFailure", func(t *testing.T, c Config) {
		// Upstream runs it on a store that does not tell corrupt objects from other errors.
		setGate(t, features.AllowUnsafeMalformedObjectDeletion, false)
		storagetesting.RunTestTransformationFailure(t.Context(), t, newEnv(t, c))
	}},
	{"Stats", func(t *testing.T, c Config) {
		for _, estimate := range []bool{true, false} {
			t.Run(fmt.Sprintf("SizeBasedListCostEstimate=%v", estimate), func(t *testing.T) {
				e := newEnv(t, c)
				if estimate {
					if err := e.EnableResourceSizeEstimation(e.keys); err != nil {
						t.Fatal(err)
					}
				}
				storagetesting.RunTestStats(t.Context(), t, e, e.config.Codec, e.transformer,
					estimate)
			})
		}
	}},
	{"Watch", func(t *testing.T, c Config) {
		storagetesting.RunTestWatch(t.Context(), t, newEnv(t, c))
	}},
	{"ClusterScopedWatch", func(t *testing.T, c Config) {
		storagetesting.RunTestClusterScopedWatch(t.Context(), t, newEnv(t, c))
	}},
	{"NamespaceScopedWatch", func(t *testing.T, c Config) {
		storagetesting.RunTestNamespaceScopedWatch(t.Context(), t, newEnv(t, c))
	}},
	{"DeleteTriggerWatch", func(t *testing.T, c Config) {
		storagetesting.RunTestDeleteTriggerWatch(t.Context(), t, newEnv(t, c))
	}},
	{"WatchFromZero", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunTestWatchFromZero(t.Context(), t, e, e.compact)
	}},
	{"WatchFromNonZero", func(t *testing.T, c Config) {
		storagetesting.RunTestWatchFromNonZero(t.Context(), t, newEnv(t, c))
	}},
	{"DelayedWatchDelivery", func(t *testing.T, c Config) {
		storagetesting.RunTestDelayedWatchDelivery(t.Context(), t, newEnv(t, c))
	}},
	{"WatchError", func(t *testing.T, c Config) {
		storagetesting.RunTestWatchError(t.Context(), t, newEnv(t, c))
	}},
	{"WatchWithUnsafeDelete", func(t *testing.T, c Config) {
		setGate(t, features.AllowUnsafeMalformedObjectDeletion, true)
		storagetesting.RunTestWatchWithUnsafeDelete(t.Context(), t, newEnv(t, c), errCorrupt)
	}},
	{"WatchContextCancel", func(t *testing.T, c Config) {
		storagetesting.RunTestWatchContextCancel(t.Context(), t, newEnv(t, c))
	}},
	{"WatcherTimeout", func(t *testing.T, c Config) {
		storagetesting.RunTestWatcherTimeout(t.Context(), t, newEnv(t, c))
	}},
	{"WatchDeleteEventObjectHaveLatestRV", func(t *testing.T, c Config) {
		storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(t.Context(), t, newEnv(t, c))
	}},
	{"WatchInitializationSignal", func(t *testing.T, c Config) {
		storagetesting.RunTestWatchInitializationSignal(t.Context(), t, newEnv(t, c))
	}},
	{"ProgressNotify", func(t *testing.T, c Config) {
		e := newEnv(t, c)
		storagetesting.RunOptionalTestProgressNotify(t.Context(), t, e, e.raiseRevision)
	}},
	{"WatchDispatchBookmarkEvents", func(t *testing.T, c Config) {
		storagetesting.RunTestWatchDispatchBookmarkEvents(t.Context(), t, newEnv(t, c), false)
	}},
	{"SendInitialEventsBackwardCompatibility", func(t *testing.T, c Config) {
		storagetesting.RunSendInitialEventsBackwardCompatibility(t.Context(), t, newEnv(t, c))
	}},
	{"WatchSemantics", func(t *testing.T, c Config) {
		for _, concurrently := range []bool{true, false} {
			t.Run(fmt.Sprintf("ConcurrentWatchObjectDecode=%v", concurrently), func(t *testing.T) {
				setGate(t, features.ConcurrentWatchObjectDecode, concurrently)
				storagetesting.RunWatchSemantics(t.Context(), t, newEnv(t, c))
			})
		}
	}},
	{"WatchSemanticInitialEventsExtended", func(t *testing.T, c Config) {
		storagetesting.RunWatchSemanticInitialEventsExtended(t.Context(), t, newEnv(t, c))
	}},
	{"WatchListMatchSingle", func(t *testing.T, c Config) {
		storagetesting.RunWatchListMatchSingle(t.Context(), t, newEnv(t, c))
	}},
	{"WatchErrorIsBlockingFurtherEvents", func(t *testing.T, c Config) {
		storagetesting.RunWatchErrorIsBlockingFurtherEvents(t.Context(), t, newEnv(t, c))
	}},
}
