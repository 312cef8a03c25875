# Completion of pgcdc's command line; written by: python -m pgcdc_cli.cli.generate
_pgcdc_offer() {
    # By lines: a file's name may hold blanks.
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@")
}
_pgcdc_files() {
    # bash 3 has no compopt, and quotes nothing then.
    compopt -o filenames 2>/dev/null
    _pgcdc_offer "$@"
}
_pgcdc_begin() {
    compopt -o nospace 2>/dev/null
    _pgcdc_offer "$@"
}
_pgcdc_ask() {
    # Names are compared and quoted, never expanded: anybody may have made them.
    local line quote="'"
    local begun="${word#$quote}"
    while IFS= read -r line; do
        [[ "$line" == "$begun"* ]] || continue
        if [ "$begun" = "$word" ]; then COMPREPLY+=("$(printf %q "$line")")
        # bash keeps the quote that is begun, and ends it.
        else COMPREPLY+=("${line//$quote/$quote\\$quote$quote}"); fi
    done < <(pgcdc __complete "$1" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
_pgcdc() {
    local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
    local command=pgcdc members='' options='' i
    COMPREPLY=()
    # bash takes --option=value apart into three words.
    if [ "$word" = "=" ]; then word=""
    elif [ "$previous" = "=" ]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$command ${COMP_WORDS[i]}" in
            "pgcdc demo"|"pgcdc doctor"|"pgcdc slot"|"pgcdc slot create"|"pgcdc slot drop"|"pgcdc slot peek"|"pgcdc slot advance"|"pgcdc slot copy"|"pgcdc slot alter"|"pgcdc slot list"|"pgcdc slot show"|"pgcdc publication"|"pgcdc publication create"|"pgcdc publication alter"|"pgcdc publication drop"|"pgcdc publication list"|"pgcdc publication show"|"pgcdc stream"|"pgcdc snapshot"|"pgcdc recvlogical"|"pgcdc show"|"pgcdc status"|"pgcdc spark-submit"|"pgcdc help") command="$command ${COMP_WORDS[i]}" ;;
        esac
    done
    case "$command $previous" in
        "pgcdc --config"|"pgcdc demo --config"|"pgcdc doctor --config"|"pgcdc slot --config"|"pgcdc slot create --config"|"pgcdc slot drop --config"|"pgcdc slot peek --config"|"pgcdc slot advance --config"|"pgcdc slot copy --config"|"pgcdc slot alter --config"|"pgcdc slot list --config"|"pgcdc slot show --config"|"pgcdc publication --config"|"pgcdc publication create --config"|"pgcdc publication alter --config"|"pgcdc publication drop --config"|"pgcdc publication list --config"|"pgcdc publication show --config"|"pgcdc stream -f"|"pgcdc stream --file"|"pgcdc stream --connector-config"|"pgcdc stream --metrics-file"|"pgcdc stream --config"|"pgcdc snapshot -f"|"pgcdc snapshot --file"|"pgcdc snapshot --connector-config"|"pgcdc snapshot --config"|"pgcdc recvlogical -f"|"pgcdc recvlogical --file"|"pgcdc show --connector-config"|"pgcdc show --config"|"pgcdc status --config"|"pgcdc spark-submit --config"|"pgcdc help --config") _pgcdc_files -f -- "$word"; return ;;
        "pgcdc --log-format"|"pgcdc demo --log-format"|"pgcdc doctor --log-format"|"pgcdc slot --log-format"|"pgcdc slot create --log-format"|"pgcdc slot drop --log-format"|"pgcdc slot peek --log-format"|"pgcdc slot advance --log-format"|"pgcdc slot copy --log-format"|"pgcdc slot alter --log-format"|"pgcdc slot list --log-format"|"pgcdc slot show --log-format"|"pgcdc publication --log-format"|"pgcdc publication create --log-format"|"pgcdc publication alter --log-format"|"pgcdc publication drop --log-format"|"pgcdc publication list --log-format"|"pgcdc publication show --log-format"|"pgcdc stream --log-format"|"pgcdc snapshot --log-format"|"pgcdc show --log-format"|"pgcdc status --log-format"|"pgcdc spark-submit --log-format"|"pgcdc help --log-format") _pgcdc_offer -W 'text timed json' -- "$word"; return ;;
        "pgcdc demo --keep"|"pgcdc stream -D"|"pgcdc stream --directory"|"pgcdc snapshot -D"|"pgcdc snapshot --directory"|"pgcdc status --warehouse"|"pgcdc spark-submit --input"|"pgcdc spark-submit --warehouse") _pgcdc_files -d -- "$word"; return ;;
        "pgcdc demo --seconds"|"pgcdc demo --rate"|"pgcdc doctor --role"|"pgcdc doctor -h"|"pgcdc doctor --host"|"pgcdc doctor -p"|"pgcdc doctor --port"|"pgcdc doctor -U"|"pgcdc doctor --username"|"pgcdc slot create -P"|"pgcdc slot create --plugin"|"pgcdc slot create -h"|"pgcdc slot create --host"|"pgcdc slot create -p"|"pgcdc slot create --port"|"pgcdc slot create -U"|"pgcdc slot create --username"|"pgcdc slot drop -h"|"pgcdc slot drop --host"|"pgcdc slot drop -p"|"pgcdc slot drop --port"|"pgcdc slot drop -U"|"pgcdc slot drop --username"|"pgcdc slot peek --limit"|"pgcdc slot peek -h"|"pgcdc slot peek --host"|"pgcdc slot peek -p"|"pgcdc slot peek --port"|"pgcdc slot peek -U"|"pgcdc slot peek --username"|"pgcdc slot advance -h"|"pgcdc slot advance --host"|"pgcdc slot advance -p"|"pgcdc slot advance --port"|"pgcdc slot advance -U"|"pgcdc slot advance --username"|"pgcdc slot copy -h"|"pgcdc slot copy --host"|"pgcdc slot copy -p"|"pgcdc slot copy --port"|"pgcdc slot copy -U"|"pgcdc slot copy --username"|"pgcdc slot alter -h"|"pgcdc slot alter --host"|"pgcdc slot alter -p"|"pgcdc slot alter --port"|"pgcdc slot alter -U"|"pgcdc slot alter --username"|"pgcdc slot list --interval"|"pgcdc slot list -h"|"pgcdc slot list --host"|"pgcdc slot list -p"|"pgcdc slot list --port"|"pgcdc slot list -U"|"pgcdc slot list --username"|"pgcdc slot show -h"|"pgcdc slot show --host"|"pgcdc slot show -p"|"pgcdc slot show --port"|"pgcdc slot show -U"|"pgcdc slot show --username"|"pgcdc publication create --operations"|"pgcdc publication create -h"|"pgcdc publication create --host"|"pgcdc publication create -p"|"pgcdc publication create --port"|"pgcdc publication create -U"|"pgcdc publication create --username"|"pgcdc publication alter --operations"|"pgcdc publication alter -h"|"pgcdc publication alter --host"|"pgcdc publication alter -p"|"pgcdc publication alter --port"|"pgcdc publication alter -U"|"pgcdc publication alter --username"|"pgcdc publication drop -h"|"pgcdc publication drop --host"|"pgcdc publication drop -p"|"pgcdc publication drop --port"|"pgcdc publication drop -U"|"pgcdc publication drop --username"|"pgcdc publication list -h"|"pgcdc publication list --host"|"pgcdc publication list -p"|"pgcdc publication list --port"|"pgcdc publication list -U"|"pgcdc publication list --username"|"pgcdc publication show -h"|"pgcdc publication show --host"|"pgcdc publication show -p"|"pgcdc publication show --port"|"pgcdc publication show -U"|"pgcdc publication show --username"|"pgcdc stream --snapshot-workers"|"pgcdc stream -I"|"pgcdc stream --startpos"|"pgcdc stream -s"|"pgcdc stream --status-interval"|"pgcdc stream --rotate-size"|"pgcdc stream --rotate-interval"|"pgcdc stream --on-segment"|"pgcdc stream -F"|"pgcdc stream --fsync-interval"|"pgcdc stream --file-mode"|"pgcdc stream --exclude-column"|"pgcdc stream --max-time"|"pgcdc stream --max-transactions"|"pgcdc stream --idle-timeout"|"pgcdc stream --proto-version"|"pgcdc stream --spool-limit"|"pgcdc stream -o"|"pgcdc stream --option"|"pgcdc stream --metrics-port"|"pgcdc stream -h"|"pgcdc stream --host"|"pgcdc stream -p"|"pgcdc stream --port"|"pgcdc stream -U"|"pgcdc stream --username"|"pgcdc snapshot --exclude-column"|"pgcdc snapshot --columns"|"pgcdc snapshot --where"|"pgcdc snapshot --sample"|"pgcdc snapshot --snapshot-workers"|"pgcdc snapshot --rotate-size"|"pgcdc snapshot --file-mode"|"pgcdc snapshot -h"|"pgcdc snapshot --host"|"pgcdc snapshot -p"|"pgcdc snapshot --port"|"pgcdc snapshot -U"|"pgcdc snapshot --username"|"pgcdc recvlogical -P"|"pgcdc recvlogical --plugin"|"pgcdc recvlogical -F"|"pgcdc recvlogical --fsync-interval"|"pgcdc recvlogical -s"|"pgcdc recvlogical --status-interval"|"pgcdc recvlogical -I"|"pgcdc recvlogical --startpos"|"pgcdc recvlogical -E"|"pgcdc recvlogical --endpos"|"pgcdc recvlogical -o"|"pgcdc recvlogical --option"|"pgcdc recvlogical -h"|"pgcdc recvlogical --host"|"pgcdc recvlogical -p"|"pgcdc recvlogical --port"|"pgcdc recvlogical -U"|"pgcdc recvlogical --username"|"pgcdc show --limit"|"pgcdc show --tail"|"pgcdc show --key"|"pgcdc show --column"|"pgcdc show --since"|"pgcdc show --until"|"pgcdc show --at"|"pgcdc status --interval"|"pgcdc status -h"|"pgcdc status --host"|"pgcdc status -p"|"pgcdc status --port"|"pgcdc status -U"|"pgcdc status --username"|"pgcdc spark-submit --master"|"pgcdc spark-submit --catalog"|"pgcdc spark-submit --decimal"|"pgcdc spark-submit --retain"|"pgcdc spark-submit --until"|"pgcdc spark-submit --follow") :; return ;;
        "pgcdc demo --format") _pgcdc_offer -W 'jsonl arrow' -- "$word"; return ;;
        "pgcdc doctor -S"|"pgcdc doctor --slot"|"pgcdc stream -S"|"pgcdc stream --slot"|"pgcdc recvlogical -S"|"pgcdc recvlogical --slot") _pgcdc_ask slots; return ;;
        "pgcdc doctor --publication"|"pgcdc slot peek --publication"|"pgcdc stream --publication"|"pgcdc snapshot --publication") _pgcdc_ask publications; return ;;
        "pgcdc doctor -d"|"pgcdc doctor --dbname"|"pgcdc slot create -d"|"pgcdc slot create --dbname"|"pgcdc slot drop -d"|"pgcdc slot drop --dbname"|"pgcdc slot peek -d"|"pgcdc slot peek --dbname"|"pgcdc slot advance -d"|"pgcdc slot advance --dbname"|"pgcdc slot copy -d"|"pgcdc slot copy --dbname"|"pgcdc slot alter -d"|"pgcdc slot alter --dbname"|"pgcdc slot list -d"|"pgcdc slot list --dbname"|"pgcdc slot show -d"|"pgcdc slot show --dbname"|"pgcdc publication create -d"|"pgcdc publication create --dbname"|"pgcdc publication alter -d"|"pgcdc publication alter --dbname"|"pgcdc publication drop -d"|"pgcdc publication drop --dbname"|"pgcdc publication list -d"|"pgcdc publication list --dbname"|"pgcdc publication show -d"|"pgcdc publication show --dbname"|"pgcdc stream -d"|"pgcdc stream --dbname"|"pgcdc snapshot -d"|"pgcdc snapshot --dbname"|"pgcdc recvlogical -d"|"pgcdc recvlogical --dbname"|"pgcdc status -d"|"pgcdc status --dbname") _pgcdc_ask databases; return ;;
        "pgcdc slot peek --format") _pgcdc_offer -W 'pretty jsonl raw' -- "$word"; return ;;
        "pgcdc slot advance --to"|"pgcdc stream -E"|"pgcdc stream --endpos") _pgcdc_offer -W now -- "$word"; return ;;
        "pgcdc publication create --table"|"pgcdc publication alter --add-table"|"pgcdc publication alter --drop-table"|"pgcdc publication alter --set-table"|"pgcdc stream --resnapshot"|"pgcdc stream --table"|"pgcdc stream --exclude-table"|"pgcdc snapshot --table"|"pgcdc snapshot --exclude-table") _pgcdc_ask tables; return ;;
        "pgcdc publication create --schema"|"pgcdc publication alter --add-schema"|"pgcdc publication alter --drop-schema") _pgcdc_ask schemas; return ;;
        "pgcdc publication create --generated-columns"|"pgcdc publication alter --generated-columns") _pgcdc_offer -W 'none stored' -- "$word"; return ;;
        "pgcdc stream --snapshot") _pgcdc_offer -W 'never initial only' -- "$word"; return ;;
        "pgcdc stream --format") _pgcdc_offer -W 'jsonl arrow debezium pretty wal2json raw' -- "$word"; return ;;
        "pgcdc stream --layout"|"pgcdc snapshot --layout") _pgcdc_offer -W 'table stream' -- "$word"; return ;;
        "pgcdc stream --compression"|"pgcdc snapshot --compression") _pgcdc_offer -W 'none gzip zstd' -- "$word"; return ;;
        "pgcdc stream --numeric"|"pgcdc snapshot --numeric") _pgcdc_offer -W 'string number' -- "$word"; return ;;
        "pgcdc stream -c"|"pgcdc stream --connector-property"|"pgcdc snapshot -c"|"pgcdc snapshot --connector-property"|"pgcdc show -c"|"pgcdc show --connector-property") _pgcdc_begin -W 'topic.prefix= topic.delimiter= topic.transaction= topic.heartbeat.prefix= schema.include.list= schema.exclude.list= table.include.list= table.exclude.list= column.include.list= column.exclude.list= message.prefix.include.list= message.prefix.exclude.list= message.key.columns= decimal.handling.mode= time.precision.mode= interval.handling.mode= binary.handling.mode= hstore.handling.mode= money.fraction.digits= tombstones.on.delete= skipped.operations= provide.transaction.metadata= snapshot.mode= unavailable.value.placeholder= include.unknown.datatypes= column.propagate.source.type= datatype.propagate.source.type= schema.name.adjustment.mode= field.name.adjustment.mode= heartbeat.interval.ms= key.converter.schemas.enable= value.converter.schemas.enable= key.converter.replace.null.with.default= value.converter.replace.null.with.default= key.converter.decimal.format= value.converter.decimal.format= extended.headers.enabled= slot.name= publication.name= publication.autocreate.mode= publish.via.partition.root= database.hostname= database.port= database.user= database.password= database.dbname= database.sslmode= database.sslcert= database.sslkey= database.sslpassword= database.sslrootcert= debezium.version= transforms= transforms.unwrap.type= transforms.unwrap.delete.tombstone.handling.mode= transforms.unwrap.delete.handling.mode= transforms.unwrap.drop.tombstones= transforms.unwrap.add.fields= transforms.unwrap.add.fields.prefix= transforms.unwrap.add.headers= transforms.unwrap.add.headers.prefix= transforms.unwrap.route.by.field= transforms.unwrap.replace.null.with.default= transforms.outbox.type= transforms.outbox.table.field.event.id= transforms.outbox.table.field.event.key= transforms.outbox.table.field.event.type= transforms.outbox.table.field.event.payload= transforms.outbox.table.field.event.timestamp= transforms.outbox.table.field.event.schema.version= transforms.outbox.table.fields.additional.placement= transforms.outbox.table.fields.additional.error.on.missing= transforms.outbox.table.expand.json.payload= transforms.outbox.table.json.payload.null.behavior= transforms.outbox.route.by.field= transforms.outbox.route.topic.regex= transforms.outbox.route.topic.replacement= transforms.outbox.route.tombstone.on.empty.payload= transforms.outbox.debezium.op.invalid.behavior= transforms.route.type= transforms.route.regex= transforms.route.replacement=' -- "$word"; return ;;
        "pgcdc stream --record"|"pgcdc snapshot --record"|"pgcdc show --record") _pgcdc_offer -W 'full value' -- "$word"; return ;;
        "pgcdc stream --wal2json-option") _pgcdc_begin -W 'format-version= include-transaction= include-xids= include-timestamp= include-origin= include-lsn= include-schemas= include-types= include-typmod= include-domain-data-type= include-type-oids= include-pk= include-not-null= include-default= include-column-positions= numeric-data-types-as-string= add-tables= filter-tables= add-msg-prefixes= filter-msg-prefixes= actions= filter-origins= write-in-chunks= pretty-print=' -- "$word"; return ;;
        "pgcdc stream --invalid-text"|"pgcdc snapshot --invalid-text") _pgcdc_offer -W 'stop replace escape' -- "$word"; return ;;
        "pgcdc stream --streaming") _pgcdc_offer -W 'off on parallel' -- "$word"; return ;;
        "pgcdc stream --two-phase-at") _pgcdc_offer -W 'commit prepare' -- "$word"; return ;;
        "pgcdc stream --origin") _pgcdc_offer -W 'any none' -- "$word"; return ;;
        "pgcdc snapshot --format") _pgcdc_offer -W 'jsonl arrow debezium pretty' -- "$word"; return ;;
        "pgcdc show --format") _pgcdc_offer -W 'pretty jsonl debezium' -- "$word"; return ;;
        "pgcdc show --table"|"pgcdc spark-submit --table") _pgcdc_ask stored; return ;;
        "pgcdc show --op") _pgcdc_offer -W 'I U D T M R' -- "$word"; return ;;
        "pgcdc spark-submit --format") _pgcdc_offer -W 'delta iceberg' -- "$word"; return ;;
        "pgcdc spark-submit --mode") _pgcdc_offer -W 'merge changelog both' -- "$word"; return ;;
        "pgcdc spark-submit --infinity") _pgcdc_offer -W 'null string' -- "$word"; return ;;
        "pgcdc spark-submit --missing-toast") _pgcdc_offer -W 'error null' -- "$word"; return ;;
        "pgcdc spark-submit --readers") _pgcdc_offer -W 'any modern' -- "$word"; return ;;
        "pgcdc spark-submit --recreated") _pgcdc_offer -W 'replace stop' -- "$word"; return ;;
    esac
    case "$command" in
        "pgcdc")
            members='demo doctor slot publication stream snapshot recvlogical show status spark-submit help'
            options='-V --version --json --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc demo")
            members=''
            options='--keep --seconds --rate --format --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc doctor")
            members=''
            options='-S --slot --publication --role --json -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc slot")
            members='create drop peek advance copy alter list show'
            options='--config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc slot create")
            members=''
            options='-P --plugin -t --two-phase --failover --if-not-exists --json -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc slot drop")
            members=''
            options='--if-exists --wait --yes -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask slots ;; esac
            ;;
        "pgcdc slot peek")
            members=''
            options='--publication --limit --format --json -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask slots ;; esac
            ;;
        "pgcdc slot advance")
            members=''
            options='--to --yes -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask slots ;; esac
            ;;
        "pgcdc slot copy")
            members=''
            options='-d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask slots ;; esac
            ;;
        "pgcdc slot alter")
            members=''
            options='--failover --no-failover --two-phase --no-two-phase -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask slots ;; esac
            ;;
        "pgcdc slot list")
            members=''
            options='--json --watch --interval -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc slot show")
            members=''
            options='--json -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask slots ;; esac
            ;;
        "pgcdc publication")
            members='create alter drop list show'
            options='--config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc publication create")
            members=''
            options='--table --schema --all-tables --operations --via-root --generated-columns -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc publication alter")
            members=''
            options='--add-table --drop-table --set-table --add-schema --drop-schema --operations --via-root --no-via-root --generated-columns -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask publications ;; esac
            ;;
        "pgcdc publication drop")
            members=''
            options='--if-exists -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask publications ;; esac
            ;;
        "pgcdc publication list")
            members=''
            options='--json -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc publication show")
            members=''
            options='--json -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_ask publications ;; esac
            ;;
        "pgcdc stream")
            members=''
            options='-S --slot --publication --create-slot --if-not-exists --peek --snapshot --snapshot-workers --resnapshot -I --startpos -n --no-loop -s --status-interval --accept-gap --accept-publications --accept-database --accept-upgrade -f --file -D --directory --format --layout --compression --rotate-size --rotate-interval --on-segment -F --fsync-interval --file-mode --transactions --numeric --connector-config -c --connector-property --record --wal2json-option --invalid-text --table --exclude-table --exclude-column --no-catalog -E --endpos --max-time --max-transactions --idle-timeout --proto-version --streaming -t --two-phase --two-phase-at --binary --messages --origin --spool-limit -o --option --progress --no-progress --metrics-port --metrics-file -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc snapshot")
            members=''
            options='--publication --table --exclude-table --exclude-column --columns --where --sample --snapshot-workers -f --file -D --directory --format --layout --compression --rotate-size --file-mode --numeric --connector-config -c --connector-property --record --invalid-text --no-catalog --progress --no-progress --json -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc recvlogical")
            members=''
            options='--create-slot --drop-slot --start -S --slot -P --plugin -t --enable-two-phase --two-phase --enable-failover --if-not-exists -f --file -F --fsync-interval -s --status-interval -I --startpos -E --endpos -n --no-loop -o --option -v --verbose -V --version -d --dbname -h --host -p --port -U --username -w --no-password -W --password -? --help'
            ;;
        "pgcdc show")
            members=''
            options='--format --json --full --stat --partial --follow --limit --tail --table --op --key --column --since --until --at --connector-config -c --connector-property --record --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_files -f -- "$word" ;; esac
            ;;
        "pgcdc status")
            members=''
            options='--warehouse --verify --json --watch --interval -d --dbname -h --host -p --port -U --username -w --no-password -W --password --config --debug -v --verbose -q --quiet --log-format -? --help'
            case "$word" in -*) ;; *) _pgcdc_files -f -- "$word" ;; esac
            ;;
        "pgcdc spark-submit")
            members=''
            options='--input --warehouse --master --format --catalog --mode --table --metadata --soft-delete --infinity --decimal --variant --missing-toast --readers --recreated --compact --retain --until --if-new --dry-run --follow --json --config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
        "pgcdc help")
            members=''
            options='--config --debug -v --verbose -q --quiet --log-format -? --help'
            ;;
    esac
    case "$word" in
        -*) _pgcdc_offer -W "$options" -- "$word" ;;
        *) _pgcdc_offer -W "$members" -- "$word" ;;
    esac
}
complete -F _pgcdc pgcdc
