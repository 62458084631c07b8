%% Callers on a Mnesia cluster: the Erlang side of bench/peers/mnesia.py.
%%
%% Every node loads this module. The first one starts Mnesia everywhere, makes the tables (in
%% memory, a copy on each node), calls the coordinator at a port of the loopback address, and is
%% then asked in one Erlang term a line:
%%
%%     {Way, Keys, On, Callers, Millis}.
%%
%% Way is transaction | bag | lock, Keys is own | many | hot, and the callers are spread over the
%% first On nodes. It answers with one JSON object a line:
%%
%%     took_us  microseconds of every call that was carried out
%%     late     how many of these ended after the time was up
%%     failed   calls that were given up, whatever the reason
%%     counted  by how much the number in the hot row grew; null where there is no hot row
%%
%% A call reads what is registered under a key, finds the number that comes next, and writes it
%% with its own process as the owner. So nothing is lost if the hot row grows by as many as there
%% were calls.
-module(mnesia_bench).
-export([main/0, callers/4]).

-record(single, {key, number, owner}).
-record(several, {key, number, owner}).

-define(MANY, 1000).
-define(PATIENCE_MS, 20000).

%% Started by `-s mnesia_bench main -extra PORT NODE...`, this node first.
main() ->
    spawn(fun() ->
        try serve(init:get_plain_arguments())
        catch Kind:Reason -> io:format("~p: ~0p~n", [Kind, Reason]), halt(1)
        end
    end).

serve([Port | Names]) ->
    Nodes = [list_to_atom(Name) || Name <- Names],
    [ok = await(Node, ?PATIENCE_MS) || Node <- tl(Nodes)],
    ok = tables(Nodes),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, list_to_integer(Port),
                                   [binary, {packet, line}, {active, false}, {nodelay, true}]),
    answer(Socket, Nodes).

await(Node, Left) when Left =< 0 -> {no_node, Node};
await(Node, Left) ->
    case net_adm:ping(Node) of
        pong -> ok;
        pang -> timer:sleep(50), await(Node, Left - 50)
    end.

tables(Nodes) ->
    [ok = rpc:call(Node, mnesia, start, []) || Node <- Nodes],
    {ok, _} = mnesia:change_config(extra_db_nodes, tl(Nodes)),
    Copies = {ram_copies, Nodes},
    {atomic, ok} = mnesia:create_table(
        single, [{type, set}, Copies, {attributes, record_info(fields, single)}]),
    {atomic, ok} = mnesia:create_table(
        several, [{type, bag}, Copies, {attributes, record_info(fields, several)}]),
    [ok = rpc:call(Node, mnesia, wait_for_tables, [[single, several], ?PATIENCE_MS])
     || Node <- Nodes],
    ok.

answer(Socket, Nodes) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Line} ->
            {ok, Tokens, _} = erl_scan:string(binary_to_list(Line)),
            {ok, Asked} = erl_parse:parse_term(Tokens),
            ok = gen_tcp:send(Socket, json(measure(Asked, Nodes))),
            answer(Socket, Nodes);
        {error, closed} ->
            halt(0)
    end.

json({Took, Late, Failed, Counted}) ->
    [io_lib:format("{\"late\": ~p, \"failed\": ~p, \"counted\": ~p, \"took_us\": [",
                   [Late, Failed, Counted]),
     lists:join(",", [integer_to_list(Us) || Us <- Took]), "]}\n"].

%% Measuring ------------------------------------------------------------------------------------

measure({Way, Keys, On, Callers, Millis}, Nodes) ->
    Before = hot_number(Way, Nodes),
    Numbers = lists:seq(0, Callers - 1),
    Running = [rpc:async_call(Node, ?MODULE, callers, [Way, Keys, Mine, Millis])
               || {Which, Node} <- lists:zip(lists:seq(0, On - 1), lists:sublist(Nodes, On)),
                  Mine <- [[N || N <- Numbers, N rem On =:= Which]]],
    Found = [rpc:yield(Each) || Each <- Running],
    Counted = case Keys of hot -> hot_number(Way, Nodes) - Before; _ -> null end,
    {lists:append([Took || {Took, _, _} <- Found]),
     lists:sum([Late || {_, Late, _} <- Found]),
     lists:sum([Failed || {_, _, Failed} <- Found]),
     Counted}.

%% Highest on any node: a dirty write reaches the others some time later.
hot_number(Way, Nodes) ->
    Table = case Way of bag -> several; _ -> single end,
    Rows = [rpc:call(Node, mnesia, dirty_read, [Table, {Way, hot}]) || Node <- Nodes],
    next(lists:append(Rows)) - 1.

%% Run one process for each of Numbers on this node until the time is up. Their results come as
%% the reasons with which they end.
callers(Way, Keys, Numbers, Millis) ->
    End = now_us() + Millis * 1000,
    Call = fun(Number) -> call(Way, Keys, Number, 0, End, now_us(), {[], 0, 0}) end,
    Started = [spawn_monitor(fun() -> exit(Call(Number)) end) || Number <- Numbers],
    lists:foldl(
        fun({Pid, Ref}, {Took, Late, Failed}) ->
            receive
                {'DOWN', Ref, process, Pid, {done, T, L, F}} -> {T ++ Took, Late + L, Failed + F};
                {'DOWN', Ref, process, Pid, Reason} -> exit(Reason)
            end
        end, {[], 0, 0}, Started).

call(_, _, _, _, End, Began, {Took, Late, Failed}) when Began >= End ->
    {done, Took, Late, Failed};
call(Way, Keys, Number, Turn, End, Began, {Took, Late, Failed}) ->
    Done = try read_check_write(Way, {Way, key(Keys, Number, Turn)}) catch _:_ -> failed end,
    Ended = now_us(),
    Found = case Done of
        ok when Ended > End -> {[Ended - Began | Took], Late + 1, Failed};
        ok -> {[Ended - Began | Took], Late, Failed};
        _ -> {Took, Late, Failed + 1}
    end,
    call(Way, Keys, Number, Turn + 1, End, Ended, Found).

now_us() -> erlang:monotonic_time(microsecond).

%% `many` exists because a process that comes straight back to its own key can find it locked by
%% its own last transaction: that returns before the other nodes have let go.
key(own, Number, _) -> {own, Number};
key(many, Number, Turn) -> {many, Number, Turn rem ?MANY};
key(hot, _, _) -> hot.

%% The ways -------------------------------------------------------------------------------------

next(Rows) -> lists:max([0 | [element(3, Row) || Row <- Rows]]) + 1.

read_check_write(transaction, Key) ->
    committed(mnesia:transaction(fun() ->
        Rows = mnesia:read(single, Key, write),
        mnesia:write(#single{key = Key, number = next(Rows), owner = self()})
    end));
%% What a registry does that keeps a bag of channels: the old ones go, the new one comes.
read_check_write(bag, Key) ->
    committed(mnesia:transaction(fun() ->
        Rows = mnesia:read(several, Key, write),
        [ok = mnesia:delete_object(Row) || Row <- Rows],
        mnesia:write(#several{key = Key, number = next(Rows), owner = self()})
    end));
%% One lock for the whole cluster, and operations under it that lock nothing themselves.
read_check_write(lock, Key) ->
    global:trans({Key, self()}, fun() ->
        Rows = mnesia:dirty_read(single, Key),
        mnesia:dirty_write(#single{key = Key, number = next(Rows), owner = self()})
    end).

committed({atomic, ok}) -> ok;
committed(_) -> failed.
